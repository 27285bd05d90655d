// Prints the files and functions of lib that one warm call passes in the application's thread, in order: npm run trace. A function that
// a call passes several times is printed once. The model of the digits runs in a thread, whose functions are not printed.
import { register } from 'node:module';
import { fileURLToPath } from 'node:url';
import 'reflect-metadata';
import { Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { Tensor } from 'onnxruntime-common';

const CALLS_TO_WARM_UP = 200;
const CALLS_TRACED = 50;

register('./trace-hooks.js', import.meta.url);
const { ServingModule, ServingService } = await import('nestjs-serving');

let passed = new Map();
globalThis.functionPassed = (path, line, name) =>
  passed.set(`${path}:${line} ${name}`, { path, line, name });

const file = fileURLToPath(new URL('../sample/01-digits/model/digits.onnx', import.meta.url));
class App {}
Module({ imports: [ServingModule.forRoot({ servings: [{ name: 'digits', model: file }] })] })(App);
const app = await NestFactory.createApplicationContext(App, { logger: false });
const servings = app.get(ServingService);
const image = new Tensor('float32', new Float32Array(784), [1, 784]);
const traced = [];
for (let call = 0; call < CALLS_TO_WARM_UP + CALLS_TRACED; call++) {
  passed = new Map();
  await servings.batchedRun('digits', { image });
  if (call >= CALLS_TO_WARM_UP) {
    traced.push([...passed.values()]);
  }
}
await app.close();

// Timers fall into some calls: the shortest has none.
print(traced.reduce((shortest, each) => (each.length < shortest.length ? each : shortest)));

function print(functions) {
  let last;
  for (const { path, line, name } of functions) {
    if (path !== last) {
      console.log(path);
      last = path;
    }
    console.log(`${String(line).padStart(6)}  ${name}`);
  }
  const files = new Set(functions.map(({ path }) => path)).size;
  console.log(`\n${files} files, ${functions.length} functions`);
}

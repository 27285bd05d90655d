import { type INestApplication } from '@nestjs/common';
import { afterAll, beforeAll, expect, it } from '@jest/globals';
import { Test } from '@nestjs/testing';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import { defineServing, ServingModule } from 'nestjs-serving';
import { InferenceProtocolModule } from 'nestjs-serving/inference-protocol';
import { runCli } from '../../fixtures/children/run-cli.js';

const digits = defineServing({ name: 'digits', model: 'sample/01-digits/model/digits.onnx' });
/** Takes drawings, as the serving of the README. */
const drawings = defineServing({
  name: 'drawings',
  preprocess: (lines: string[]) => ({ batch: lines.join('') }),
  model: { useFactory: () => (texts: string[]) => texts.map((text) => text.length) },
});
const narrow = defineServing({
  name: 'narrow',
  batchSize: 1,
  queue: { maxRows: 1 },
  model: {
    useFactory: () => async (numbers: number[]) => {
      await setTimeout(10);
      return numbers;
    },
  },
});
const broken = defineServing({
  name: 'broken',
  model: {
    useFactory: () => () => {
      throw new Error('broken');
    },
  },
});

let app: INestApplication;
let url: string;
let folder: string;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'bench-'));
  const testing = await Test.createTestingModule({
    imports: [
      ServingModule.forRoot({ servings: [digits, drawings, narrow, broken] }),
      InferenceProtocolModule.forRoot({
        servings: [
          'digits',
          'drawings',
          { serving: 'narrow', inputs: { number: 'FP32' } },
          { serving: 'broken', inputs: { number: 'FP32' } },
        ],
        guards: [
          {
            canActivate: (context) =>
              context.switchToHttp().getRequest().headers['x-api-key'] === 'key',
          },
        ],
      }),
    ],
  }).compile();
  app = testing.createNestApplication({ logger: false });
  app.setGlobalPrefix('models');
  await app.listen(0, '127.0.0.1');
  url = `${await app.getUrl()}/models`;
});
afterAll(async () => {
  await app.close();
  await rm(folder, { recursive: true });
});

const bench = (...args: string[]) =>
  runCli(['bench', url, '--duration', '300ms', '--header', 'x-api-key: key', ...args]);

it('[21.8] bench measures a running model at each rate', async () => {
  const { code, stdout } = await bench(
    '--model',
    'digits',
    '--rates',
    '50,100',
    '--rows',
    '4',
    '--json',
  );

  const { loads } = JSON.parse(stdout) as {
    loads: { rate: number; answered: number; failed: number; p50: number }[];
  };
  expect(code).toBe(0);
  expect(loads.map(({ rate }) => rate)).toEqual([50, 100]);
  expect(
    loads.filter(({ answered, failed, p50 }) => !(answered > 0 && failed === 0 && p50 > 0)),
  ).toEqual([]);
});

it('[21.8] bench finds what the model can do, and measures shares of it', async () => {
  const { code, stdout } = await bench('--model', 'digits', '--connections', '8');

  expect(code).toBe(0);
  expect(stdout).toMatch(/^8 callers that wait for their answer get \d+(\.\d+)? answers\/s\./);
  expect(stdout.split('\n').filter((line) => /^ +\d/.test(line))).toHaveLength(7);
});

it('[18.25] bench measures a model that refuses some of the callers that wait for their answer', async () => {
  const { code, stdout } = await bench('--model', 'narrow', '--connections', '8');

  expect(code).toBe(0);
  expect(stdout).toMatch(/^8 callers that wait for their answer get \d+(\.\d+)? answers\/s\./);
});

it('[18.26] bench refuses an address with a query, which no call would have', async () => {
  const { code, stderr } = await runCli(['bench', `${url}?key=1`, '--model', 'digits']);

  expect(code).toBe(1);
  expect(stderr).toContain('?key=1 has a query, which no call would have');
});

it('[N10] bench measures a serving with preprocess, of which it is given an input or a file with one', async () => {
  const file = join(folder, 'drawing.json');
  await writeFile(file, JSON.stringify(['##', ' #']));
  const options = ['--model', 'drawings', '--rates', '50', '--rows', '2', '--json'];

  for (const input of ['["##", " #"]', `@${file}`]) {
    const { code, stdout } = await bench(...options, '--input', input);
    expect(code).toBe(0);
    expect(JSON.parse(stdout)).toMatchObject({ loads: [{ failed: 0, refused: 0 }] });
  }
});

it.each([
  [
    '[N10] a serving with preprocess without an input',
    ['--model', 'drawings'],
    '"drawings" does not take the text that bench makes up; give it a row, for a serving with ' +
      "preprocess in JSON: --input '[1, 2]', or --input @row.json for a file. status 400",
  ],
  [
    '[N10] an input of a model of tensors',
    ['--model', 'digits', '--input', '[1]'],
    '"digits" takes [image: float32], of which bench makes tensors up; leave --input out',
  ],
  [
    'a model that is not served',
    ['--model', 'cats'],
    'has no model "cats" by the Open Inference Protocol: status 404',
  ],
  [
    'calls that are not allowed',
    ['--model', 'digits', '--header', 'x-api-key: other'],
    'status 403',
  ],
  ['calls that all fail', ['--model', 'broken', '--rates', '50'], 'status 500'],
  ['an address without a server', ['http://127.0.0.1:1', '--model', 'digits'], 'ECONNREFUSED'],
  [
    'an address that is none',
    ['localhost', '--model', 'digits'],
    'localhost is no address; give one such as http://localhost:3000',
  ],
])('[21.8] bench fails with the reason: %s', async (_, args, message) => {
  const result = args[0]!.startsWith('--')
    ? await bench(...args)
    : await runCli(['bench', ...args]);

  expect(result.code).toBe(1);
  expect(result.stderr).toContain(message);
});

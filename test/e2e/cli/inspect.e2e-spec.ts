import { afterAll, beforeAll, expect, it } from '@jest/globals';
import { transform } from '@swc/core';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { createServing, type ServingDefinition, Tensor } from 'nestjs-serving';
import { runCli } from '../../fixtures/children/run-cli.js';

import { echoModel, value } from '../../fixtures/models/models.js';

const root = fileURLToPath(new URL('../../..', import.meta.url));
const digits = 'sample/01-digits/model/digits.onnx';

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(root, 'node_modules', '.inspect-'));
});
afterAll(() => rm(folder, { recursive: true }));

it('[21.1] inspect describes a model', async () => {
  const { code, stdout, stderr } = await runCli(['inspect', digits]);

  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  expect(stdout).toContain('image: float32[batch, 784] (rows on axis 0)');
  expect(stdout).toContain('probabilities: float32[batch, 10] (rows on axis 0)');
  expect(stdout).toContain('101,770 numbers, 407 kB: float32 100 %');
  expect(stdout).toContain('export const digits = defineServing({');
});

it('[21.1] inspect --json prints JSON alone', async () => {
  const { stdout } = await runCli(['inspect', digits, '--json']);

  expect(JSON.parse(stdout)).toMatchObject({
    opsets: { 'ai.onnx': 17 },
    inputs: [{ name: 'image', type: 'float32', shape: ['batch', 784], batchAxis: 0 }],
    outputs: [{ name: 'probabilities', shape: ['batch', 10], batchAxis: 0 }],
    warnings: [],
  });
});

it.each([
  ['an unknown command', ['inspekt'], 2, 'Did you mean inspect?'],
  ['a missing argument', ['inspect'], 2, "missing required argument 'model'"],
  ['an unknown option', ['inspect', digits, '--yaml'], 2, "unknown option '--yaml'"],
  ['a missing file', ['inspect', 'none.onnx'], 1, 'error none.onnx: it cannot be read'],
])('[21.5] A mistake ends with an exit code and what is wrong: %s', async (_, args, code, text) => {
  const result = await runCli(args);

  expect(result.code).toBe(code);
  expect(result.stderr).toContain(text);
  expect(result.stdout).toBe('');
});

it('[21.5] --help lists the commands, and --version is that of the package', async () => {
  const help = await runCli(['--help']);
  const version = await runCli(['--version']);

  expect(help).toMatchObject({ code: 0, stdout: expect.stringContaining('inspect') });
  expect(version).toMatchObject({ code: 0, stdout: expect.stringMatching(/^\d+\.\d+\.\d+\n$/) });
});

it('[21.4] The suggested definition starts, and runs rows', async () => {
  const model = join(folder, 'open-axis.onnx');
  await writeFile(model, echoModel({ x: value('float32', 3, 'rows', 'width') }));
  const { stdout } = await runCli(['inspect', model, '--json']);
  const { definition } = JSON.parse(stdout) as { definition: string };
  const { code } = await transform(definition, { jsc: { parser: { syntax: 'typescript' } } });
  const file = join(folder, 'definition.mjs');
  await writeFile(file, code);
  const { openAxis } = (await import(pathToFileURL(file).href)) as {
    openAxis: ServingDefinition;
  };
  const serving = createServing(openAxis);
  await serving.start();

  const x = new Tensor('float32', [1, 2, 3, 4, 5, 6], [3, 1, 2]);
  const answer = (await serving.batchedRun({ x })) as { same_x: Tensor };
  await serving.close();

  expect(answer.same_x.data).toEqual(x.data);
});

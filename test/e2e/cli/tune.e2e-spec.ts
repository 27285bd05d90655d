import { afterAll, beforeAll, expect, it } from '@jest/globals';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { runCli } from '../../fixtures/children/run-cli.js';
import { linearModel, quantisedModel } from '../../fixtures/models/models.js';

let folder: string;
let model: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'tune-'));
  model = join(folder, 'linear.onnx');
  await writeFile(model, linearModel('batch'));
});
afterAll(() => rm(folder, { recursive: true }));

const quick = [
  '--duration',
  '200ms',
  '--batch-sizes',
  '1,4',
  '--partitions',
  '1,2',
  '--threads',
  '1',
];

it('[21.7] tune measures settings of a real model, and recommends one that keeps the target', async () => {
  const args = ['tune', model, '--target', '1m', ...quick, '--json'];
  const { code, stdout } = await runCli(args);

  const { trials, recommended } = JSON.parse(stdout) as {
    trials: {
      partitions: number;
      threads: number;
      batchSize: number;
      best: { answered: number };
    }[];
    recommended: { repeats: object[]; definition: string };
  };
  expect(code).toBe(0);
  expect(trials.map(({ partitions, batchSize }) => [partitions, batchSize])).toEqual([
    [1, 1],
    [1, 4],
    [2, 1],
    [2, 4],
  ]);
  expect(trials.filter(({ best }) => !(best.answered > 0))).toEqual([]);
  expect(recommended.repeats).toHaveLength(3);
  expect(recommended.definition).toContain('intraOpNumThreads: 1');
});

it('[21.7] tune fails when no setting keeps the target, and shows what it measured', async () => {
  const { code, stdout, stderr } = await runCli(['tune', model, '--target', '0.001ms', ...quick]);

  expect(code).toBe(1);
  expect(stdout).toMatch(/partitions +threads +batchSize/);
  expect(stderr).toContain(
    'No setting answers 99 of 100 calls in 0.001 ms; give a longer --target',
  );
});

it('[N10] tune writes the same warning once, and apart from the results', async () => {
  const quantised = join(folder, 'quantised.onnx');
  await writeFile(quantised, quantisedModel());
  const args = ['tune', quantised, '--target', '1m', ...quick, '--json'];
  const { code, stdout, stderr } = await runCli(args);

  expect(code).toBe(0);
  expect(stderr.split('quantises its activations')).toHaveLength(2);
  expect((JSON.parse(stdout) as { trials: object[] }).trials).toHaveLength(4);
});

it('[21.5] tune without a target says which option is missing', async () => {
  const { code, stderr } = await runCli(['tune', model]);

  expect(code).toBe(2);
  expect(stderr).toContain("required option '--target <time>' not specified");
});

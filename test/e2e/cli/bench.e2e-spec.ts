import { type INestApplication } from '@nestjs/common';
import { afterAll, beforeAll, expect, it } from '@jest/globals';
import { Test } from '@nestjs/testing';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { defineServing, ServingModule } from 'nestjs-serving';
import { InferenceProtocolModule } from 'nestjs-serving/inference-protocol';
import { runCli } from '../../fixtures/children/run-cli.js';

const digits = defineServing({ name: 'digits', model: 'sample/01-digits/model/digits.onnx' });
const broken = defineServing({
  name: 'broken',
  useFactory: () => () => {
    throw new Error('broken');
  },
});

let app: INestApplication;
let url: string;
let folder: string;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'bench-'));
  const testing = await Test.createTestingModule({
    imports: [
      ServingModule.forRoot({ servings: [digits, broken] }),
      InferenceProtocolModule.forRoot({
        servings: ['digits', { serving: 'broken', inputs: { number: 'FP32' } }],
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
  const plot = join(folder, 'plot.svg');
  const { code, stdout } = await bench(
    '--model',
    'digits',
    '--rates',
    '50,100',
    '--rows',
    '4',
    '--plot',
    plot,
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
  expect(await readFile(plot, 'utf8')).toContain('>p99.9</text>');
});

it('[21.8] bench finds what the model can do, and measures shares of it', async () => {
  const { code, stdout } = await bench('--model', 'digits', '--connections', '8');

  expect(code).toBe(0);
  expect(stdout).toMatch(/^8 callers that wait for their answer get \d+(\.\d+)? answers\/s\./);
  expect(stdout.split('\n').filter((line) => /^ +\d/.test(line))).toHaveLength(7);
});

it.each([
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

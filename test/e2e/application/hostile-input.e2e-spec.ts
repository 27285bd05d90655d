import { execFile } from 'node:child_process';
import { expect, it } from '@jest/globals';

interface Ended {
  readonly code: number;
  readonly output: string;
}

/**
 * A short `npm run fuzz` with a fixed seed. It runs in a process of its own, since Jest's globals
 * make it three times as slow.
 */
function fuzz(...args: readonly string[]): Promise<Ended> {
  return new Promise((resolve) => {
    execFile(
      process.execPath,
      ['test/fuzz/dist/fuzz/main.js', ...args],
      { timeout: 500_000 },
      (error, stdout, stderr) =>
        // Without a code it was ended by its time limit.
        resolve({ code: error ? Number(error.code) || -1 : 0, output: stdout + stderr }),
    );
  });
}

it('[18.17] [L6] [L7] [4.6] [4.9] [6.1] [6.5] [11] [19.8] A hundred hostile calls through each entry are answered correctly or refused alone with typed errors', async () => {
  // A call that stops all others does so for seconds; less depends on what else the machine does.
  const { code, output } = await fuzz('--count', '100', '--seed', '4', '--standstill', '2000');

  expect({ code, output }).toEqual({ code: 0, output: expect.not.stringMatching(/^ *FAILED /m) });
  const entries = [...output.matchAll(/^(.+): (\d+) hostile and (\d+) valid calls/gm)].map(
    ([, entry, hostile, valid]) => ({
      entry,
      enough: Number(hostile) >= 100 && Number(valid) > 20,
    }),
  );
  expect(entries).toEqual(
    [
      'HTTP JSON, model',
      'HTTP JSON, function',
      'HTTP, @Batched',
      'service, function',
      'service, thread',
      'service, model',
      'service, allowed sizes',
      'inference protocol, Express',
      'inference protocol, Fastify',
      'board, Express',
      'board, Fastify',
      'frames',
      'heavy texts, Express',
      'heavy texts, Fastify',
      'cluster, handshake',
      'cluster, streams',
      'endpoint, answers',
      'inference protocol, gRPC',
    ].map((entry) => ({ entry, enough: true })),
  );
});

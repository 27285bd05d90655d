import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { expect, it } from '@jest/globals';

const demo = fileURLToPath(new URL('../../../sample/demo/dist/demo.js', import.meta.url));

it('The demo runs the same load with and without batches, and no request fails', async () => {
  const { stdout } = await promisify(execFile)(process.execPath, [demo]);

  const figures = Object.fromEntries(
    stdout.split('\n').flatMap((line) => {
      const [label, batched, oneByOne] = line.split(/ {2,}/);
      return oneByOne ? [[label!, [batched, oneByOne]]] : [];
    }),
  );
  expect(figures).toMatchObject({
    requests: ['1000', '1000'],
    failed: ['0', '0'],
    batches: [expect.stringMatching(/^\d+$/), '-'],
    'latency p99': [expect.stringMatching(/ ms$/), expect.stringMatching(/ ms$/)],
    'event loop late, p99': [expect.stringMatching(/ ms$/), expect.stringMatching(/ ms$/)],
  });
});

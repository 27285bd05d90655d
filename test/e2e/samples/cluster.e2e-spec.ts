import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { describe, expect, it } from '@jest/globals';

const sample = fileURLToPath(new URL('../../../scripts/sample.js', import.meta.url));

/** The figures that the sample prints for one load. */
function loadIn(line: string): {
  readonly answers: number;
  readonly nodes: readonly string[];
  readonly failed: number;
} {
  const answers = [...line.matchAll(/(one|two) (\d+)/g)].map(
    ([, node, count]) => [node!, Number(count)] as const,
  );
  const [, failed] = /(\d+) failed/.exec(line) ?? [];
  return {
    answers: answers.reduce((sum, [, count]) => sum + count, 0),
    nodes: answers.map(([node]) => node),
    failed: Number(failed),
  };
}

describe('The sample 06-cluster', () => {
  it('[11] All digits are read by both model nodes, and by the one that is left', async () => {
    const { stdout } = await promisify(execFile)(process.execPath, [sample, '06']);

    const loads = stdout.split('\n').filter((line) => line.includes('read right'));
    expect(loads.map((line) => loadIn(line.slice(line.indexOf(':'))))).toEqual([
      { answers: 600, nodes: ['one', 'two'], failed: 0 },
      { answers: 3000, nodes: ['one', 'two'], failed: 0 },
      { answers: 600, nodes: ['two'], failed: 0 },
    ]);
  });
});

it.each([[[]], [['0']], [['07-unknown']]])(
  'The command for samples lists them when it is given %j',
  async (args) => {
    await expect(promisify(execFile)(process.execPath, [sample, ...args])).rejects.toMatchObject({
      code: 1,
      stderr: expect.stringMatching(
        /^npm run sample NAME.*:\n {2}01-digits\n {2}02-semantic-search\n/,
      ),
    });
  },
);

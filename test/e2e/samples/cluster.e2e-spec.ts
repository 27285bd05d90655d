import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
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
  it('[11] [N1] All digits are read by both model nodes, and by the one that is left, after lines that say what the command is doing', async () => {
    const { stdout, stderr } = await promisify(execFile)(process.execPath, [sample, '06']);

    expect(stderr).toMatch(/^Building sample\/06-cluster\.\nStarting sample\/06-cluster\.\n/);
    const loads = stdout.split('\n').filter((line) => line.includes('read right'));
    expect(loads.map((line) => loadIn(line.slice(line.indexOf(':'))))).toEqual([
      { answers: 600, nodes: ['one', 'two'], failed: 0 },
      { answers: 3000, nodes: ['one', 'two'], failed: 0 },
      { answers: 600, nodes: ['two'], failed: 0 },
    ]);
  });
});

const list =
  /npm run sample NAME.*:\n {2}01-digits +A web service .*\n {2}02-semantic-search +A page /;

it('[N9] The command for samples lists them, each with what it does, and their page does too', async () => {
  const { stdout } = await promisify(execFile)(process.execPath, [sample]);
  expect(stdout).toMatch(list);

  const page = readFileSync(
    fileURLToPath(new URL('../../../sample/README.md', import.meta.url)),
    'utf8',
  );
  const inPage = [...page.matchAll(/^\| \[(\S+)\]\(\1\/README\.md\) \| (.*) \|$/gm)];
  expect(inPage.map(([, name, text]) => [name, text])).toEqual(
    [...stdout.matchAll(/^ {2}(\S+) +(.*)$/gm)].map(([, name, text]) => [name, text]),
  );
});

it.each(['0', '07-unknown'])(
  'The command for samples fails for the name "%s", and lists them',
  async (name) => {
    await expect(promisify(execFile)(process.execPath, [sample, name])).rejects.toMatchObject({
      code: 1,
      stderr: expect.stringMatching(list),
    });
  },
);

import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, it } from '@jest/globals';

const folder = fileURLToPath(new URL('..', import.meta.url));

/** Numbers at the start of a string, as in `'[4.1] [W14] A window ...'`. */
const CITATION = /(?<=['"`])(?:\[(?:[A-Z]+\d+|\d+\.\d+|11)\] )+/g;
const NUMBER = /[A-Z]*\d+(?:\.\d+)?/g;

/** The numbers that the names of tests and of their tables begin with. */
function citedNumbers(): string[] {
  const specs = readdirSync(folder, { recursive: true, encoding: 'utf8' }).filter((file) =>
    file.endsWith('spec.ts'),
  );
  const citations = specs.flatMap(
    (file) => readFileSync(join(folder, file), 'utf8').match(CITATION) ?? [],
  );
  return citations.flatMap((citation) => citation.match(NUMBER) ?? []);
}

it('Every number that a test cites is in BEHAVIOURS.md, and every number there is cited', () => {
  const list = readFileSync(join(folder, 'BEHAVIOURS.md'), 'utf8');
  const listed = [...list.matchAll(/^- \[(\S+)\]/gm)].map(([, number]) => number!);
  const cited = citedNumbers();

  expect(listed).toHaveLength(new Set(listed).size);
  expect(cited.filter((number) => !listed.includes(number))).toEqual([]);
  expect(listed.filter((number) => !cited.includes(number))).toEqual([]);
});

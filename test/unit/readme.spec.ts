import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { expect, it } from '@jest/globals';

const root = fileURLToPath(new URL('../..', import.meta.url));
const readme = readFileSync(`${root}/README.md`, 'utf8');

/**
 * A code block of the manual, with the file and region, run by a test or sample, that it must
 * equal.
 */
const blocks = [
  ...readme.matchAll(/(?:<!-- (\S+)#(\S+) -->\n)?```(?:ts|js|python)\n([\s\S]*?)```/g),
].map(([, file, region, code]) => ({
  file,
  region,
  code: code!,
}));

function regionOf(file: string, region: string): string {
  const source = readFileSync(`${root}/${file}`, 'utf8');
  const body = new RegExp(
    `^( *)(?://|#) #region ${region}\\n([\\s\\S]*?)^ *(?://|#) #endregion`,
    'm',
  ).exec(source);
  const [, indent = '', text = ''] = body ?? [];
  return text.replaceAll(new RegExp(`^${indent}`, 'gm'), '');
}

it('The manual has code blocks', () => {
  expect(blocks.length).toBeGreaterThan(10);
});

it.each(blocks)(
  'A code block of the manual equals its region in $file $region',
  ({ file, region, code }) => {
    expect(file).toBeDefined();
    expect(code).toBe(regionOf(file!, region!));
  },
);

it('The manual has every option and every error code', () => {
  const definitions = readFileSync(`${root}/lib/definition/serving-definition.ts`, 'utf8');
  const options = [...definitions.matchAll(/^ {2}(?:readonly (\w+)\??:|(\w+)\?\()/gm)].map(
    ([, option, callback]) => option ?? callback,
  );
  const codes = [...readFileSync(`${root}/lib/errors.ts`, 'utf8').matchAll(/'(SERVING_\w+)'/g)].map(
    ([, code]) => code,
  );
  expect([...options, ...codes].filter((word) => !readme.includes(`\`${word}\``))).toEqual([]);
});

import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from '@jest/globals';

const root = fileURLToPath(new URL('../..', import.meta.url));

/** Text of every page of the manual by its path in the repository. */
const pages = new Map(
  ['README.md', ...readdirSync(`${root}/docs`).map((file) => `docs/${file}`)]
    .filter((path) => path.endsWith('.md'))
    .map((path) => [path, readFileSync(`${root}/${path}`, 'utf8')]),
);

/** Code blocks of the manual, each with the file and region, run by a test or sample, that it must equal. */
const blocks = [...pages].flatMap(([page, text]) =>
  [...text.matchAll(/(?:<!-- (\S+)#(\S+) -->\n)?```(?:ts|js|python)\n([\s\S]*?)```/g)].map(
    ([, file, region, code]) => ({ page, file, region, code: code! }),
  ),
);

function regionOf(file: string, region: string): string {
  const source = readFileSync(`${root}/${file}`, 'utf8');
  const body = new RegExp(
    `^( *)(?://|#) #region ${region}\\n([\\s\\S]*?)^ *(?://|#) #endregion`,
    'm',
  ).exec(source);
  const [, indent = '', text = ''] = body ?? [];
  return text.replaceAll(new RegExp(`^${indent}`, 'gm'), '');
}

/** Anchors that GitHub gives the headings of a page. */
function anchorsOf(text: string): string[] {
  return [...text.replaceAll(/^```[\s\S]*?^```/gm, '').matchAll(/^#+ (.*)$/gm)].map(([, heading]) =>
    heading!
      .toLowerCase()
      .replaceAll(/[^\w\- ]/g, '')
      .replaceAll(' ', '-'),
  );
}

it('The manual has code blocks', () => {
  expect(blocks.length).toBeGreaterThan(10);
});

it.each(blocks)(
  'A code block of $page equals its region in $file $region',
  ({ file, region, code }) => {
    expect(file).toBeDefined();
    expect(code).toBe(regionOf(file!, region!));
  },
);

describe.each([...pages.keys()])('%s', (page) => {
  it('links to files and headings that exist', () => {
    const broken = [...pages.get(page)!.matchAll(/\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)/g)]
      .filter(([, path, anchor]) => {
        const target = path ? join(dirname(page), path) : page;
        const isMissing = !existsSync(join(root, target));
        return isMissing || (anchor && !anchorsOf(pages.get(target) ?? '').includes(anchor));
      })
      .map(([link]) => link);
    expect(broken).toEqual([]);
  });
});

it('The page on options has every option', () => {
  const definitions = readFileSync(`${root}/lib/definition/serving-definition.ts`, 'utf8');
  const options = [...definitions.matchAll(/^ {2}(?:readonly (\w+)\??:|(\w+)\?\()/gm)].map(
    ([, option, callback]) => option ?? callback,
  );
  const page = pages.get('docs/options.md')!;
  expect(options.filter((option) => !page.includes(`\`${option}\``))).toEqual([]);
});

it('The page on overload and errors has every error code', () => {
  const codes = [...readFileSync(`${root}/lib/errors.ts`, 'utf8').matchAll(/'(SERVING_\w+)'/g)].map(
    ([, code]) => code,
  );
  const page = pages.get('docs/overload.md')!;
  expect(codes.filter((code) => !page.includes(`\`${code}\``))).toEqual([]);
});

import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from '@jest/globals';
import * as api from '../../lib/index.js';
import { ServingError } from '../../lib/core/errors.js';

const root = fileURLToPath(new URL('../..', import.meta.url));

/** Text of every page of the manual by its path in the repository. */
const pages = new Map(
  [
    'README.md',
    ...readdirSync(`${root}/docs`, { recursive: true, encoding: 'utf8' }).map(
      (file) => `docs/${file}`,
    ),
  ]
    .filter((path) => path.endsWith('.md'))
    .map((path) => [path, readFileSync(`${root}/${path}`, 'utf8')]),
);

/** All pages whose links are checked. */
const linked = new Map([
  ...pages,
  ...readdirSync(root)
    .filter((path) => path.endsWith('.md') && path !== 'README.md')
    .map((path) => [path, readFileSync(`${root}/${path}`, 'utf8')] as const),
]);

/** Code blocks of the manual, each with the file and region, run by a test or sample, that it must equal. */
const blocks = [...pages].flatMap(([page, text]) =>
  [
    ...text.matchAll(
      /(?:<!-- (\S+)#(\S+) -->\n)?```(?:ts|js|html|python|dockerfile|yaml)\n([\s\S]*?)```/g,
    ),
  ].map(([, file, region, code]) => ({ page, file, region, code: code! })),
);

function regionOf(file: string, region: string): string {
  const source = readFileSync(`${root}/${file}`, 'utf8');
  const body = new RegExp(
    `^( *)(?://|#|<!--) #region ${region}(?: -->)?\\n([\\s\\S]*?)^ *(?://|#|<!--) #endregion`,
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
    // An application has no folder of this repository: the README copies the model into its own.
    expect(code).not.toContain("'sample/");
  },
);

const REPOSITORY = /https:\/\/github\.com\/nestjs-serving\/nestjs-serving\/(?:blob|tree)\/main\//g;

const isPackaged = (page: string): boolean => page.startsWith('docs/') || page === 'README.md';

describe.each([...linked.keys()])('%s', (page) => {
  it('[FU45] links to what the package has, or to the repository', () => {
    const outside = [...linked.get(page)!.matchAll(/\]\((?!https?:)([^)#\s]+)/g)]
      .map(([, path]) => join(dirname(page), path!))
      .filter((target) => !/^(?:docs(?:\/|$)|README|CHANGELOG|LICENSE)/.test(target));
    expect(isPackaged(page) ? outside : []).toEqual([]);
  });

  it('links to files and headings that exist', () => {
    const text = linked.get(page)!.replaceAll(REPOSITORY, '/');
    const broken = [...text.matchAll(/(?:\]\(|src=")(?!https?:)([^)#\s"]*)(?:#([^)\s]+))?[)"]/g)]
      .filter(([, path, anchor]) => {
        const inRepository = path?.startsWith('/') && path.slice(1);
        const target = inRepository || (path ? join(dirname(page), path) : page);
        const isMissing = !existsSync(join(root, target));
        return isMissing || (anchor && !anchorsOf(linked.get(target) ?? '').includes(anchor));
      })
      .map(([link]) => link);
    expect(broken).toEqual([]);
  });
});

it('The index of the manual has a line for each page', () => {
  const index = pages.get('docs/README.md')!;
  const links = [...index.matchAll(/^\| \[[^\]]+\]\(([^)#]+\.md)\) \|/gm)].map(
    ([, path]) => `docs/${path}`,
  );
  const others = [...pages.keys()].filter(
    (page) => page !== 'README.md' && page !== 'docs/README.md',
  );
  expect(others.filter((page) => !links.includes(page))).toEqual([]);
});

it('The tables of the page on options equal the types and comments of the source', () => {
  expect(() =>
    execFileSync(process.execPath, ['scripts/docs-options.js', '--check'], { cwd: root }),
  ).not.toThrow();
});

it('The page on options has every option of a serving', () => {
  const definitions = readFileSync(`${root}/lib/core/definition/serving-definition.ts`, 'utf8');
  const options = [...definitions.matchAll(/^ {2}(?:readonly (\w+)\??:|(\w+)\?\()/gm)].map(
    ([, option, callback]) => option ?? callback,
  );
  const results = ['batch', 'info', 'facts'];
  const page = pages.get('docs/options.md')!;
  expect(
    options.filter(
      (option) => !results.includes(option!) && !new RegExp(`[\`.]${option}\` \\|`).test(page),
    ),
  ).toEqual([]);
});

it('The page on errors has class, status, cause and advice of every error code', () => {
  const page = pages.get('docs/troubleshooting.md')!;
  const errors = Object.values(api).filter(
    (value): value is typeof ServingError =>
      value === ServingError ||
      (typeof value === 'function' && value.prototype instanceof ServingError),
  );
  const codes = [
    ...readFileSync(`${root}/lib/core/errors.ts`, 'utf8').matchAll(/'(SERVING_\w+)'/g),
  ];
  expect(new Set(errors.map((type) => new type().code))).toEqual(
    new Set(codes.map(([, code]) => code)),
  );
  for (const type of errors) {
    const { code, name, statusCode } = new type();
    const bootError = `\\| \`${code}\` \\| \`${name}\` \\| [^|]{10,} \\| [^|]{10,} \\|`;
    const callError = `\\| \`${code}\` \\| \`${name}\` \\| ${statusCode} \\| [^|]{10,} \\| [^|]{7,} \\|`;
    expect(page).toMatch(new RegExp(`^(${bootError}|${callError})`, 'm'));
  }
});

const manual = [...pages].filter(([page]) => page.startsWith('docs/'));

it.each(manual)('[N7] %s says where the decorators of its snippets come from', (_, text) => {
  const code = [...text.matchAll(/```ts\n(.*?)```/gs)].map(([, block]) => block).join('\n');
  const used = [...code.matchAll(/@([A-Z]\w+)\(/g)].map(([, name]) => name);
  const [intro] = text.split('\n## ');
  const said = [
    ...intro!.matchAll(/`(\w+)`/g),
    ...code.matchAll(/(?<=import [^;]*?)\b(\w+)\b(?=[^;]*? from)/g),
  ].map(([, name]) => name);
  expect(used.filter((name) => !said.includes(name))).toEqual([]);
});

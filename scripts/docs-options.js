// Writes the option tables of docs/options.md from the types and comments of lib.
// `npm run docs:options` rewrites the page; with --check the script fails if the page is not current.
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import ts from 'typescript';

const PAGE = 'docs/options.md';
const interfaces = interfacesIn('lib');
const page = readFileSync(PAGE, 'utf8');
const sections = sectionsOf(page);
const current = page.replaceAll(
  /(<!-- options: (.*?) -->\n)[\s\S]*?(<!-- end -->)/g,
  (_, start, names, end) => `${start}\n${tableOf(names.split(' '))}\n${end}`,
);

if (!process.argv.includes('--check')) {
  writeFileSync(PAGE, current);
} else if (page !== current) {
  console.error(`${PAGE} differs from the types in lib; run npm run docs:options`);
  process.exitCode = 1;
}

/** Every exported interface of the folder by its name. */
function interfacesIn(folder) {
  const paths = readdirSync(folder, { recursive: true }).map((path) => join(folder, String(path)));
  const files = paths.filter((path) => path.endsWith('.ts'));
  const statements = files.flatMap((file) => [
    ...ts.createSourceFile(file, readFileSync(file, 'utf8'), ts.ScriptTarget.Latest, true)
      .statements,
  ]);
  const found = statements.filter(ts.isInterfaceDeclaration);
  return new Map(found.map((declaration) => [declaration.name.text, declaration]));
}

/** The heading over each table, as a link, by the interfaces of the table. */
function sectionsOf(text) {
  const headings = new Map();
  let heading = '';
  for (const [, title, names] of text.matchAll(/^#+ (.*)$|<!-- options: (.*?) -->/gm)) {
    heading = title ?? heading;
    for (const name of names?.split(' ') ?? []) {
      headings.set(
        name,
        `#${heading
          .toLowerCase()
          .replaceAll(/[^\w\- ]/g, '')
          .replaceAll(' ', '-')}`,
      );
    }
  }
  return headings;
}

function tableOf(names) {
  const members = new Map(names.flatMap((name) => membersOf(name)));
  const rows = [...members].map(([name, member]) => rowOf(name, member));
  return `${['| option | default | meaning |', '| --- | --- | --- |', ...rows].join('\n')}\n`;
}

/** The members of an interface by their names, those that it extends first. */
function membersOf(name) {
  const declaration = interfaces.get(name);
  if (!declaration) {
    throw new Error(`${PAGE}: lib has no interface ${name}`);
  }
  const extended = (declaration.heritageClauses ?? []).flatMap(({ types }) => types);
  const own = declaration.members.map((member) => [member.name.text, member]);
  return [...extended.flatMap((type) => extendedMembers(type)), ...own];
}

/** The members of `A`, `Pick<A, 'x' | 'y'>` or `Omit<A, 'x' | 'y'>`. */
function extendedMembers({ expression, typeArguments = [] }) {
  const name = expression.getText();
  if (name !== 'Pick' && name !== 'Omit') {
    return membersOf(name);
  }
  const [from, keys] = typeArguments;
  const named = new Set([...keys.getText().matchAll(/'(\w+)'/g)].map(([, key]) => key));
  return membersOf(from.typeName.text).filter(([key]) => named.has(key) === (name === 'Pick'));
}

function rowOf(name, member) {
  const tags = ts.getJSDocTags(member);
  const initial = tags.find(({ tagName }) => tagName.text === 'default');
  const comment = ts.getJSDocCommentsAndTags(member).find(ts.isJSDoc);
  const text = wordsOf(comment?.comment);
  if (text === '') {
    throw new Error(`${PAGE}: option ${name} has no comment in lib`);
  }
  const isExperimental = tags.some(({ tagName }) => tagName.text === 'experimental');
  const meaning = isExperimental ? `${text} Experimental.` : text;
  // The type stands before the meaning: long types in a column of their own leave it no room.
  const cells = [
    `\`${name}\``,
    defaultOf(wordsOf(initial?.comment)),
    `${typeOf(member)}: ${meaning}`,
  ];
  return `| ${cells.map((cell) => cell.replaceAll(/(?<!\\)\|/g, '\\|')).join(' | ')} |`;
}

/** A comment on one line, links as code. */
function wordsOf(comment) {
  const text = ts.getTextOfJSDocComment(comment) ?? '';
  return text
    .replaceAll(/\{@link (\w+)\}/g, '`$1`')
    .replaceAll(/\s+/g, ' ')
    .trim();
}

/** A value as code, a description as text. */
function defaultOf(text) {
  return /^(-?\d+|true|false|'[^']*'|\[.*\]|\{.*\})$/.test(text) ? `\`${text}\`` : text;
}

/** The type as code. A type with a table of its own is a link to it. */
function typeOf(member) {
  if (ts.isMethodSignature(member)) {
    return `\`(${member.parameters.map(({ name }) => name.getText()).join(', ')}) => …\``;
  }
  const text = member.type
    .getText()
    .replaceAll(/\breadonly /g, '')
    .replaceAll(/\s+/g, ' ')
    .replace(/ \| undefined$/, '');
  const link = sections.get(/^(?:Partial<)?(\w+)/.exec(text)?.[1] ?? '');
  return link ? `[group](${link})` : `\`${text}\``;
}

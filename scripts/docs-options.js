// Writes the option tables of docs/options.md from the types and comments of lib.
// `npm run docs:options` rewrites the page; with --check the script fails if the page is not current.
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import ts from 'typescript';

const PAGE = 'docs/options.md';
const HEAD = '| option | default | meaning |\n| --- | --- | --- |';
/** Groups with a table of their own, and forms of others. */
const LISTED_ONCE = new Set(['ModelOptions', 'AllowedSizesOptions']);

const declarations = declarationsIn('lib');
const interfaces = byName(declarations.filter(ts.isInterfaceDeclaration));
/** What features add to the interfaces of other files. */
const additions = declarations
  .filter(ts.isModuleDeclaration)
  .flatMap(({ body }) => body.statements.filter(ts.isInterfaceDeclaration));
const aliases = new Map(
  declarations
    .filter(ts.isTypeAliasDeclaration)
    .map(({ name, type }) => [name.text, type.getText()]),
);
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

/** The statements of every file in the folder. */
function declarationsIn(folder) {
  const paths = readdirSync(folder, { recursive: true }).map((path) => join(folder, String(path)));
  const files = paths.filter((path) => path.endsWith('.ts'));
  return files.flatMap((file) => [
    ...ts.createSourceFile(file, readFileSync(file, 'utf8'), ts.ScriptTarget.Latest, true)
      .statements,
  ]);
}

function byName(named) {
  return new Map(named.map((declaration) => [declaration.name.text, declaration]));
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

/**
 * `own A` leaves out what `A` extends, and the options of groups in it, too. `start x y` has only
 * these options of a serving, each with the beginning of its comment.
 */
function tableOf(names) {
  if (names[0] === 'start') {
    return startingTable(names.slice(1));
  }
  const isOwn = names[0] === 'own';
  const rows = (isOwn ? names.slice(1) : names).flatMap((name) => rowsOf(name, '', isOwn));
  const byOption = new Map(rows);
  return `${[HEAD, ...byOption.values()].join('\n')}\n`;
}

/** The options that a new reader needs, in their order on the page. */
function startingTable(options) {
  const rows = new Map([
    ...rowsOf('ServingDefinition', '', false, 2),
    ...rowsOf('ModelRunner', 'model.', false, 2),
  ]);
  const missing = options.find((option) => !rows.has(option));
  if (missing) {
    throw new Error(`${PAGE}: a serving has no option ${missing}`);
  }
  return `${[HEAD, ...options.map((option) => rows.get(option))].join('\n')}\n`;
}

/** The rows of an interface, each followed by those of its group; `sentences` of each comment. */
function rowsOf(name, prefix, isOwn, sentences = Infinity) {
  return [...membersOf(name, isOwn)].flatMap(([option, member]) => {
    const text = member.type?.getText() ?? '';
    const groups = [
      ...(aliases.get(text) ?? text).matchAll(
        /\w*(?:Options|Joins|Rows|Tls|Limits|OfferedServing)\b/g,
      ),
    ]
      .map(([group]) => group)
      .filter((group) => interfaces.has(group) && !LISTED_ONCE.has(group));
    return [
      [prefix + option, rowOf(prefix + option, member, groups.length > 0, sentences)],
      ...groups.flatMap((group) => rowsOf(group, `${prefix}${option}.`, isOwn, sentences)),
    ];
  });
}

function isRequired([, { questionToken }]) {
  return questionToken === undefined;
}

/** The members of an interface by their names: the required ones first. */
function membersOf(name, isOwn = false) {
  const declaration = interfaces.get(name);
  if (!declaration) {
    throw new Error(`${PAGE}: lib has no interface ${name}`);
  }
  const extended = (declaration.heritageClauses ?? []).flatMap(({ types }) => types);
  const own = [declaration, ...additions.filter((added) => added.name.text === name)]
    .flatMap(({ members }) => members)
    .map((member) => [member.name.text, member]);
  const inherited = isOwn ? [] : extended.flatMap((type) => extendedMembers(type));
  const members = [...new Map([...inherited, ...own])];
  return [...members.filter(isRequired), ...members.filter((each) => !isRequired(each))];
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

function rowOf(name, member, isGroup, sentences) {
  const tags = ts.getJSDocTags(member);
  const initial = tags.find(({ tagName }) => tagName.text === 'default');
  const comment = ts.getJSDocCommentsAndTags(member).find(ts.isJSDoc);
  const text = beginningOf(wordsOf(comment?.comment), sentences);
  if (text === '') {
    throw new Error(`${PAGE}: option ${name} has no comment in lib`);
  }
  const isExperimental = tags.some(({ tagName }) => tagName.text === 'experimental');
  const meaning = isExperimental ? `${text} Experimental.` : text;
  // The type stands before the meaning: long types in a column of their own leave it no room.
  const cells = [
    `\`${name}\``,
    defaultOf(wordsOf(initial?.comment)),
    isGroup ? meaning : `${typeOf(member)}: ${meaning}`,
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

/** The first sentences of a comment. */
function beginningOf(text, sentences) {
  return text
    .split(/(?<=\.) (?=[A-Z`])/)
    .slice(0, sentences)
    .join(' ');
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
    .replace(/<(?:AnyRun, )?Facts>/, '')
    .replace(/ \| undefined$/, '');
  if (text === 'Runner') {
    return '[a file or an object](#what-runs-the-batches)';
  }
  const link = sections.get(/^(?:Partial<)?(\w+)/.exec(text)?.[1] ?? '');
  return link ? `[group](${link})` : `\`${text}\``;
}

// Hooks for modules: compiles lib when it is imported, and makes each of its functions call `functionPassed`.
import { readFileSync } from 'node:fs';
import { relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { transformSync } from '@swc/core';
import ts from 'typescript';

const lib = new URL('../lib/', import.meta.url);
const root = fileURLToPath(new URL('../', import.meta.url));

export function resolve(specifier, context, next) {
  if (specifier === 'nestjs-serving') {
    return { url: new URL('index.ts', lib).href, shortCircuit: true };
  }
  if (context.parentURL?.startsWith(lib.href) && /^\..*\.js$/.test(specifier)) {
    // Threads run the build.
    const source = specifier.endsWith('/entry-script.js')
      ? new URL('../test/fixtures/entry-script.ts', import.meta.url)
      : new URL(specifier.replace(/js$/, 'ts'), context.parentURL);
    return { url: source.href, shortCircuit: true };
  }
  return next(specifier, context);
}

export function load(url, context, next) {
  if (!url.startsWith('file:') || !url.endsWith('.ts')) {
    return next(url, context);
  }
  const path = fileURLToPath(url);
  const text = readFileSync(path, 'utf8');
  const source = url.startsWith(lib.href) ? withCalls(text, relative(root, path)) : text;
  return { format: 'module', source: compiled(source, path), shortCircuit: true };
}

/** The source with a call at the beginning of each function. */
function withCalls(text, path) {
  const tree = ts.createSourceFile(path, text, ts.ScriptTarget.Latest, true);
  const insertions = [];
  const visit = (node) => {
    if (ts.isFunctionLike(node) && node.body) {
      const { line } = tree.getLineAndCharacterOfPosition(node.getStart());
      const call = `globalThis.functionPassed?.(${JSON.stringify(path)}, ${line + 1}, ${JSON.stringify(nameOf(node))})`;
      if (ts.isBlock(node.body)) {
        insertions.push([node.body.getStart() + 1, `${call};`]);
      } else {
        insertions.push([node.body.getStart(), `(${call}, `], [node.body.getEnd(), ')']);
      }
    }
    ts.forEachChild(node, visit);
  };
  visit(tree);
  return insertions
    .toSorted(([a], [b]) => b - a)
    .reduce((source, [at, call]) => source.slice(0, at) + call + source.slice(at), text);
}

/** `Class.method`, or for a function without a name that of the function around it. */
function nameOf(node) {
  const own = node.name ?? (ts.isVariableDeclaration(node.parent) ? node.parent.name : undefined);
  const owner = ts.findAncestor(
    node.parent,
    (each) => ts.isClassLike(each) || (ts.isFunctionLike(each) && each.body !== undefined),
  );
  const name = ts.isConstructorDeclaration(node) ? 'constructor' : own?.getText();
  if (name && !(owner && ts.isClassLike(owner))) {
    return name;
  }
  const around = owner ? (ts.isClassLike(owner) ? owner.name?.text : nameOf(owner)) : undefined;
  return [around, name ?? 'callback'].filter(Boolean).join(name ? '.' : ' > ');
}

function compiled(source, filename) {
  const { code } = transformSync(source, {
    filename,
    swcrc: false,
    module: { type: 'nodenext' },
    jsc: {
      target: 'es2022',
      keepClassNames: true,
      parser: { syntax: 'typescript', decorators: true },
      transform: { legacyDecorator: true, decoratorMetadata: true, useDefineForClassFields: false },
    },
  });
  return code;
}

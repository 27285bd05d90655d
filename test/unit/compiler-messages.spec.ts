import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from '@jest/globals';
import ts from 'typescript';

const root = fileURLToPath(new URL('../..', import.meta.url));

/** The compiler's messages for a file, without the directives that expect them, by line. */
function messagesIn(file: string, source: string): ReadonlyMap<number, string> {
  const { config } = ts.readConfigFile(`${root}tsconfig.json`, (path) => ts.sys.readFile(path));
  const { options } = ts.parseJsonConfigFileContent({ ...config, include: [file] }, ts.sys, root);
  const host = ts.createCompilerHost(options);
  const read = host.readFile.bind(host);
  host.readFile = (path) => (path.endsWith(file) ? source : read(path));
  const program = ts.createProgram([root + file], { ...options, noEmit: true }, host);
  const found = program.getSourceFile(root + file);
  return new Map(
    program.getSemanticDiagnostics(found).map(({ start = 0, messageText }) => {
      const { line } = found!.getLineAndCharacterOfPosition(start);
      return [line, ts.flattenDiagnosticMessageText(messageText, '\n')];
    }),
  );
}

it.each(['test/types/servings.ts', 'test/types/batched.ts'])(
  '[D1] [N3] The types that %s expects are those that the compiler infers',
  (file) => {
    expect([...messagesIn(file, readFileSync(root + file, 'utf8')).values()]).toEqual([]);
  },
);

const directive = /\/\/ @ts-expect-error (.+)$/;

describe('Messages of the compiler', () => {
  const file = 'test/types/mistakes.ts';
  const lines = readFileSync(root + file, 'utf8').split('\n');
  const found = messagesIn(file, lines.join('\n').replaceAll('@ts-expect-error', 'expected:'));
  const expected = lines.flatMap((text, line) => {
    const [, ending] = directive.exec(text) ?? [];
    return ending === undefined ? [] : [[line + 1, ending] as const];
  });

  it('[D2] [N3] Each mistake has one message, and nothing else has any', () => {
    expect([...found.keys()]).toEqual(expected.map(([line]) => line));
  });

  it.each(expected)('The message for line %i ends with: %s', (line, ending) => {
    const message = found.get(line) ?? '';

    expect(message.replace(/\s+/g, ' ').endsWith(ending)).toBe(true);
    expect(message.split('\n').length).toBeLessThan(6);
  });
});

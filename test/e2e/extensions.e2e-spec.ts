import { execFile } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { cp, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';

const run = promisify(execFile);
const root = fileURLToPath(new URL('../..', import.meta.url));
const extensions = readdirSync(join(root, 'lib/extensions'));
const features = readdirSync(join(root, 'lib/features'), { withFileTypes: true })
  .filter((entry) => entry.isDirectory())
  .map(({ name }) => name);

/** The extensions that use a feature, and go with it. */
const usersOf: Readonly<Record<string, readonly string[]>> = {
  onnx: ['hub', 'tasks'],
  sequences: ['opentelemetry', 'tasks'],
  sessions: ['distribution'],
};

/** Folders of the core's specs that need no thread. */
const ofCore = ['batch', 'context', 'definition', 'events', 'execution', 'streaming'];

const optional = new RegExp(`extensions/|nestjs-serving/|\\b(?:${features.join('|')})\\b`);

/** The core's specs that call no extension and no feature. */
const specs = ofCore
  .flatMap((folder) =>
    readdirSync(join(root, 'test/unit', folder), { recursive: true, encoding: 'utf8' }).map(
      (file) => join('test/unit', folder, file),
    ),
  )
  .filter((file) => !optional.test(readFileSync(join(root, file), 'utf8')));

describe('A copy of the source', () => {
  let copy: string;

  beforeEach(async () => {
    copy = await mkdtemp(join(tmpdir(), 'copy-'));
    const parts = ['lib', 'package.json', 'tsconfig.json', 'tsconfig.build.json', 'jest.config.js'];
    const tests = [
      'test/unit',
      'test/fixtures',
      'test/transform.js',
      'test/environment.cjs',
      'test/slow-specs.ts',
      'test/summary-reporter.js',
    ];
    await Promise.all(
      [...parts, ...tests].map((path) =>
        cp(join(root, path), join(copy, path), { recursive: true }),
      ),
    );
    await symlink(join(root, 'node_modules'), join(copy, 'node_modules'), 'dir');
  });

  afterEach(() => rm(copy, { recursive: true, force: true }));

  /** Deletes the folders in `lib`, and what lib/index.ts takes from them. */
  async function remove(folder: string, names: readonly string[]): Promise<void> {
    await Promise.all(
      names.map((name) => rm(join(copy, 'lib', folder, name), { recursive: true })),
    );
    if (names.length > 0) {
      await rewrite('lib/index.ts', importsFrom(`${folder}/(?:${names.join('|')})`));
    }
  }

  /** Deletes the folders of features, their lines in the lists, and their names in doors. */
  async function removeFeatures(names: readonly string[]): Promise<void> {
    await remove('features', names);
    for (const door of ['calls', 'models']) {
      const imports = importsFrom(`\\.\\./features/(?:${names.join('|')})`);
      await rewrite(`lib/doors/${door}.ts`, imports);
    }
    const listed = `(?<=Features\\(\\s*\\[[^\\]]*|(?:continuous|models): \\{[^}]*)\\b(?:${names.join('|')})\\b(?:: \\w+)?,?\\s*`;
    for (const list of ['lib/features/features.ts', 'lib/features/openers.ts']) {
      await rewrite(list, importsFrom(`(?:${names.join('|')})`));
      await rewrite(list, new RegExp(listed, 'g'));
    }
  }

  async function rewrite(path: string, without: RegExp): Promise<void> {
    const file = join(copy, path);
    const text = await readFile(file, 'utf8');
    await writeFile(file, text.replaceAll(without, ''));
  }

  /** The compiler's errors for lib. */
  async function errors(): Promise<string> {
    const compiler = join(root, 'node_modules/@typescript/native/bin/tsc');
    const { stdout } = await run('node', [compiler, '-p', 'tsconfig.build.json', '--noEmit'], {
      cwd: copy,
    }).catch((failed: { stdout: string }) => failed);
    return stdout;
  }

  it.each(extensions)('compiles without the extension %s', async (extension) => {
    await remove('extensions', [extension]);
    expect(await errors()).toBe('');
  });

  it.each(features)('compiles without the feature %s', async (feature) => {
    await remove('extensions', usersOf[feature] ?? []);
    await removeFeatures([feature]);
    expect(await errors()).toBe('');
  });

  it("passes the core's tests without any feature, and any extension but the one they use, testing", async () => {
    await remove(
      'extensions',
      extensions.filter((extension) => extension !== 'testing'),
    );
    await removeFeatures(features);
    expect(await errors()).toBe('');
    expect(specs.length).toBeGreaterThan(30);
    const jest = join(root, 'node_modules/jest/bin/jest.js');
    const options = ['--experimental-vm-modules', '--no-warnings', jest, '--maxWorkers=2'];
    await run('node', [...options, ...specs], { cwd: copy, maxBuffer: Infinity });
  });
});

/** Statements that import or export from the path. */
function importsFrom(path: string): RegExp {
  return new RegExp(`^(?:im|ex)port [^;]*'(?:\\./)?${path}/[^;]*;`, 'gm');
}

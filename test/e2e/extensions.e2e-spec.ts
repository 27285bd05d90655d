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

/** Folders of the core's specs that need no thread. */
const ofCore = ['batch', 'context', 'definition', 'events', 'execution', 'sessions', 'streaming'];

/** The core's specs that call no extension. */
const specs = ofCore
  .flatMap((folder) =>
    readdirSync(join(root, 'test/unit', folder), { recursive: true, encoding: 'utf8' }).map(
      (file) => join('test/unit', folder, file),
    ),
  )
  .filter((file) => !/extensions\/|nestjs-serving\//.test(readFileSync(join(root, file), 'utf8')));

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

  /** Deletes the folders, and what lib/index.ts takes from them. */
  async function remove(names: readonly string[]): Promise<void> {
    await Promise.all(
      names.map((name) => rm(join(copy, 'lib/extensions', name), { recursive: true })),
    );
    const index = join(copy, 'lib/index.ts');
    const statements = new RegExp(
      `^(?:im|ex)port [^;]*'./extensions/(?:${names.join('|')})/[^;]*;`,
      'gm',
    );
    const text = await readFile(index, 'utf8');
    await writeFile(index, text.replaceAll(statements, ''));
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
    await remove([extension]);
    expect(await errors()).toBe('');
  });

  it("passes the core's tests without any extension but the one they use, testing", async () => {
    await remove(extensions.filter((extension) => extension !== 'testing'));
    expect(await errors()).toBe('');
    expect(specs.length).toBeGreaterThan(30);
    const jest = join(root, 'node_modules/jest/bin/jest.js');
    const options = ['--experimental-vm-modules', '--no-warnings', jest, '--maxWorkers=2'];
    await run('node', [...options, ...specs], { cwd: copy, maxBuffer: Infinity });
  });
});

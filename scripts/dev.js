// Builds lib when it changes, and runs the tests that a change can break: npm run dev, or npm run dev -- test/unit/batching for those of
// a folder alone. npm run dev -- --once lib/core/errors.ts does so once, as if that file had changed.
import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, watch } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

/** Milliseconds that editors and git take to write the files of one change. */
const SETTLE = 200;

const root = fileURLToPath(new URL('..', import.meta.url));
const jest = ['--experimental-vm-modules', '--no-warnings', 'node_modules/jest/bin/jest.js'];
const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { once: { type: 'boolean', default: false } },
});

if (values.once) {
  process.exitCode = await check(positionals, []);
} else {
  await watchAndCheck(positionals);
}

async function watchAndCheck(folders) {
  const changed = new Set();
  let noticed = withResolvers();
  for (const folder of ['lib', 'test']) {
    watch(join(root, folder), { recursive: true }, (_, path) => {
      const file = path && join(folder, path);
      if (file && isSource(file)) {
        changed.add(file);
        noticed.resolve();
      }
    });
  }
  console.log('Waiting for changes in lib and test. Ctrl+C ends this.');
  for (;;) {
    await noticed.promise;
    await sleep(SETTLE);
    noticed = withResolvers();
    const files = [...changed].filter((file) => existsSync(join(root, file)));
    changed.clear();
    await check(files, folders);
  }
}

function isSource(file) {
  return /\.(ts|js|cjs|mjs|proto)$/.test(file) && !/[/\\](dist|node_modules)[/\\]/.test(file);
}

/** The exit code of the first command that fails, or 0. */
async function check(files, folders) {
  console.log(`\n${files.join(', ') || 'A file was deleted'}`);
  if (files.some((file) => file.startsWith('lib'))) {
    const code = await build();
    if (code !== 0) {
      return code;
    }
  }
  const specs = await relatedSpecs(files, folders);
  console.log(`Tests that can break: ${specs.length} files`);
  return specs.length === 0 ? 0 : run(process.execPath, [...jest, '--runTestsByPath', ...specs]);
}

/** Compiles only what has changed, if the whole has been built before. */
async function build() {
  if (!existsSync(join(root, 'dist/cjs'))) {
    return run('npm', ['run', '-s', 'build']);
  }
  mkdirSync(join(root, '.cache'), { recursive: true });
  const compiler = ['node_modules/@typescript/native/bin/tsc', '-p', 'tsconfig.build.json'];
  const incremental = ['--incremental', '--tsBuildInfoFile', '.cache/dev.tsbuildinfo'];
  const code = await run(process.execPath, [...compiler, ...incremental]);
  return code || run(process.execPath, ['scripts/build-commonjs.js']);
}

async function relatedSpecs(files, folders) {
  if (files.length === 0) {
    return [];
  }
  let list = '';
  await run(process.execPath, [...jest, '--listTests', '--findRelatedTests', ...files], (text) => {
    list += text;
  });
  const specs = list.split('\n').filter((line) => line.endsWith('spec.ts'));
  return specs.filter(
    (spec) => folders.length === 0 || folders.some((folder) => spec.includes(folder)),
  );
}

/** The exit code. Without `onText`, the command's output is printed. */
function run(command, args, onText) {
  const child = spawn(command, args, {
    cwd: root,
    stdio: ['ignore', onText ? 'pipe' : 'inherit', 'inherit'],
    shell: command === 'npm' && process.platform === 'win32',
  });
  child.stdout?.on('data', (data) => onText(String(data)));
  return new Promise((resolve, reject) => {
    child.on('error', reject);
    child.on('close', (code) => resolve(code ?? 1));
  });
}

/** `Promise.withResolvers` for Node 20. */
function withResolvers() {
  let resolve;
  const promise = new Promise((settle) => (resolve = settle));
  return { promise, resolve };
}

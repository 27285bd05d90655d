import { type ChildProcessWithoutNullStreams, execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { utimes } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { describe, expect, it } from '@jest/globals';

const root = fileURLToPath(new URL('../..', import.meta.url));
const run = promisify(execFile);

describe('npm run trace', () => {
  it('prints the files and functions that a warm call passes, in order', async () => {
    const { stdout } = await run(process.execPath, ['scripts/trace.js'], { cwd: root });

    const lines = stdout.trim().split('\n');
    expectLinesOfSource(lines);
    const files = lines.filter((line) => line.startsWith('lib/'));
    const functions = lines.filter((line) => /^ +\d+ {2}\S/.test(line));
    expect(lines.at(-1)).toBe(`${new Set(files).size} files, ${functions.length} functions`);
    expect(functions.length).toBeGreaterThan(100);
    expect(lines.slice(0, 2)).toEqual([
      'lib/nest/serving.service.ts',
      expect.stringContaining('ServingService.batchedRun'),
    ]);
    // The rows reach the session after the call has entered the serving.
    const passed = [
      'core/serving/local-serving',
      'core/batching/pool',
      'features/onnx/native-engine',
    ];
    const places = passed.map((file) => files.indexOf(`lib/${file}.ts`));
    expect(places).not.toContain(-1);
    expect(places).toEqual(places.toSorted((a, b) => a - b));
  });
});

/** Expects the name of each function on its line. */
function expectLinesOfSource(lines: readonly string[]): void {
  let source: readonly string[] = [];
  for (const line of lines) {
    if (line.startsWith('lib/')) {
      source = readFileSync(join(root, line), 'utf8').split('\n');
    }
    const [, number, name] = /^ +(\d+) {2}(?:\S+\.)?(?!callback)(\w+)$/.exec(line) ?? [];
    if (number) {
      expect(source[Number(number) - 1]).toContain(name);
    }
  }
}

describe('npm run dev', () => {
  it('runs the tests that a file can break, and no others', async () => {
    const { code, output } = await dev('--once', 'test/fixtures/cluster/json-values.ts');

    expect(output).toContain('Tests that can break: 1 files');
    expect(output).toContain('PASS test/unit/distribution/json/json-values.spec.ts');
    expect(output).toMatch(/Test Suites: 1 passed, 1 total/);
    expect(code).toBe(0);
  });

  it('runs nothing for a file that no test imports', async () => {
    const { code, output } = await dev('--once', 'scripts/sample.js');

    expect(output).toContain('Tests that can break: 0 files');
    expect(code).toBe(0);
  });

  it('does so when a file changes', async () => {
    const args = ['scripts/dev.js', 'test/unit/distribution/json'];
    const child = spawn(process.execPath, args, { cwd: root });
    try {
      const printed = collected(child);
      await printed.until('Waiting for changes');
      const now = new Date();
      await utimes(join(root, 'test/fixtures/cluster/json-values.ts'), now, now);
      await printed.until('Test Suites: 1 passed, 1 total');
    } finally {
      child.kill();
    }
    await once(child, 'close');
  });
});

/** Collects what the process prints, its errors too. */
function collected(child: ChildProcessWithoutNullStreams): {
  until(text: string): Promise<void>;
} {
  let text = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', (data) => {
      text += String(data);
      child.emit('printed');
    });
  }
  return {
    async until(part) {
      while (!text.includes(part)) {
        await once(child, 'printed');
      }
    },
  };
}

function dev(...args: string[]): Promise<{ code: number; output: string }> {
  return new Promise((resolve) => {
    execFile(process.execPath, ['scripts/dev.js', ...args], { cwd: root }, (error, out, err) =>
      resolve({ code: error ? Number(error.code) : 0, output: out + err }),
    );
  });
}

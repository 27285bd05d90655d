import { afterEach, describe, expect, it } from '@jest/globals';
import { type ChildProcess, spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { createServing } from 'nestjs-serving';
import { useServings } from '../../fixtures/serving/use-servings.js';

const fileOf = (path: string): string =>
  fileURLToPath(new URL(`../../fixtures/${path}`, import.meta.url));

describe.each(['thread', 'process'] as const)('A module in a %s', (isolation) => {
  const start = useServings();
  const children: ChildProcess[] = [];
  afterEach(() => children.splice(0).forEach((child) => child.kill('SIGKILL')));

  it('[FR1] may send messages of its own to its parent: each call has its own answer', async () => {
    const useFile = fileOf('workers/chatty.mjs');
    const serving = createServing({
      name: 'upper',
      batchSize: 2,
      model: { useFile, isolation },
    });
    await start(serving);

    const rows = ['a', 'b', 'c', 'd', 'e'];
    expect(await Promise.all(rows.map((row) => serving.batchedRun(row)))).toEqual(
      rows.map((row) => row.toUpperCase()),
    );
    expect(serving.partitions()).toMatchObject([{ state: 'up', restarts: 0 }]);
  });

  it('[FR1] loads and answers under node --watch, which makes it report its imports', async () => {
    const app = fileOf('apps/watched.mjs');
    const child = spawn(
      process.execPath,
      ['--watch', app, isolation, fileOf('workers/chatty.mjs')],
      { stdio: ['ignore', 'pipe', 'inherit'] },
    );
    children.push(child);

    const lines: string[] = [];
    for await (const line of createInterface({ input: child.stdout })) {
      lines.push(line);
      if (/^ANSWER|^Failed/.test(line)) {
        break;
      }
    }
    expect(lines).toContainEqual(expect.stringContaining('ANSWER'));
  });
});

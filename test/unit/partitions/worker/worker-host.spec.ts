import { setImmediate as endOfTurn } from 'node:timers/promises';
import { describe, expect, it } from '@jest/globals';
import { type Port, WorkerHost } from '../../../../lib/core/partitions/worker/worker-host.js';
import type { WorkerRequest } from '../../../../lib/core/partitions/worker/worker-protocol.js';
import { packRows } from '../../../../lib/core/partitions/worker/transfer.js';
import { worker } from '../../../fixtures/partitions/worker.js';

describe('WorkerHost', () => {
  it('[8.4] A generator advances as its steps are acknowledged, and never far ahead', async () => {
    const application = new Application(worker('endless').href);
    const run = application.run(['a']);

    await application.turns(200);
    expect(application.steps).toBe(64);

    application.request({ batch: 0, acknowledged: 16 });
    await application.turns(200);
    expect(application.steps).toBe(80);

    application.request({ batch: 0, endedRows: [0] });
    application.request({ end: true });
    await run;
    expect(application.steps).toBe(80);
    expect(application.messages.at(-1)).toEqual({ batch: 0, stepped: true });
  });

  it('[8.4] Steps that were never acknowledged do not slow the next batch', async () => {
    const application = new Application(worker('endless').href);
    const run = application.run(['a']);
    await application.turns(200);
    application.request({ batch: 0, endedRows: [0] });
    application.give(['b']);

    await application.turns(200);
    expect(application.steps).toBe(128);

    application.request({ batch: 1, endedRows: [0] });
    application.request({ end: true });
    await run;
  });
});

/** The application's side, which acknowledges steps when the test does. */
class Application implements Port {
  readonly messages: Parameters<Port['post']>[0][] = [];
  isEnded = false;
  request: (request: WorkerRequest) => void = () => {};

  constructor(private readonly file: string) {}

  get steps(): number {
    return this.messages.filter((message) => 'step' in message).length;
  }

  async run(rows: string[]): Promise<void> {
    const end = new WorkerHost(
      { partition: 0, keys: ['default'], options: {}, file: this.file },
      this,
      { continuous: {}, models: {} },
    ).run();
    this.give(rows);
    await end;
  }

  exit(): void {
    this.isEnded = true;
  }

  give(rows: string[]): void {
    const info = { key: 'default', size: rows.length, padding: 0, partition: 0, hooks: [] };
    this.request({ rows: packRows(rows)[0], info });
  }

  async turns(count: number): Promise<void> {
    for (let i = 0; i < count; i++) {
      await endOfTurn();
    }
  }

  listen(listener: (request: WorkerRequest) => void): void {
    this.request = listener;
  }

  post(message: Parameters<Port['post']>[0]): void {
    this.messages.push(message);
  }

  begin(): boolean {
    return true;
  }
}

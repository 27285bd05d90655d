import { afterEach, describe, expect, it } from '@jest/globals';
import {
  createServing,
  OverloadedError,
  type Serving,
  ServingClosedError,
  type ServingDefinition,
} from 'nestjs-serving';
import { firstValueFrom, from, type Observable, toArray } from 'rxjs';
import { InboundCalls } from '../../../../lib/extensions/distribution/calls/inbound-calls.js';
import { ExportedServings } from '../../../../lib/extensions/distribution/calls/exported-servings.js';
import { jsonHandlersOf } from '../../../../lib/extensions/distribution/json/json-handlers.js';
import { Messenger } from '../../../../lib/extensions/distribution/wire/messenger.js';
import { MemoryNetwork } from '../../../../lib/extensions/distribution/memory-network.js';
import { defaultWireLimits } from '../../../../lib/extensions/distribution/wire/limits.js';
import { failureOf } from '../../../fixtures/async/failure-of.js';
import { HeldFunction } from '../../../fixtures/batching/held-function.js';
import { until } from '../../../fixtures/async/streams.js';

const started: { close(): Promise<void> }[] = [];

afterEach(() => Promise.all(started.splice(0).map((serving) => serving.close())));

const echo = { model: { useFactory: () => (rows: readonly unknown[]) => rows } };

/** The JSON handlers of a node with one serving of the name `m`. */
async function handlersOf(definition: Omit<ServingDefinition, 'name'>, maxCalls = 10) {
  const serving = createServing({ name: 'm', ...definition });
  started.push(serving);
  await serving.start();
  const limits = defaultWireLimits;
  const messenger = new Messenger({
    address: 'a',
    transport: new MemoryNetwork().transport(),
    limits,
    secret: undefined,
    onMessage: () => {},
    onTooLarge: () => {},
    onInvalidFrame: () => {},
  });
  const exported = new ExportedServings(() => new Map<string, Serving>([['m', serving]]));
  const calls = new InboundCalls({
    messenger,
    limits,
    window: { messages: 1, bytes: 1 },
    maxCalls,
    find: (name) => exported.find(name),
    onRefused: () => {},
  });
  const handlers = jsonHandlersOf(exported, { calls, limits });
  const call = (message: object): Observable<unknown> => from(handlers.get('m')!(message));
  return { serving, calls, handlers, call };
}

/** Yields without end and records when it is closed. */
class Endless {
  isLeft = false;

  readonly useFactory = () => () => this.yields();

  private async *yields(): AsyncGenerator<unknown[], void> {
    try {
      for (;;) {
        yield [1];
        await new Promise(setImmediate);
      }
    } finally {
      this.isLeft = true;
    }
  }
}

describe('The JSON handlers of a node', () => {
  it('[11] JSON calls are counted, failed ones and streams included, and drain waits for them', async () => {
    const held = new HeldFunction();
    const { calls, call } = await handlersOf({
      batchSize: 1,
      partitions: 3,
      model: { useFactory: held.useFactory },
    });
    const replies = [
      firstValueFrom(call({ input: 'a' })),
      failureOf(firstValueFrom(call({ input: 'b' }))),
      firstValueFrom(call({ input: 'c', method: 'stream' }).pipe(toArray())),
    ];
    await until(() => held.batches.length === 3);
    expect(calls.count('m')).toBe(3);
    let isDrained = false;

    const drained = calls.drain().then(() => (isDrained = true));
    expect(await failureOf(firstValueFrom(call({ input: 'd' })))).toBeInstanceOf(
      ServingClosedError,
    );
    held.next().finish([1]);
    held.next().fail(new RangeError('b'));
    await replies[1];
    expect(calls.count('m')).toBe(1);
    expect(isDrained).toBe(false);
    held.next().finish([3]);
    await drained;

    expect(await Promise.all(replies)).toMatchObject([
      1,
      { code: 'SERVING_BATCH_FAILED' },
      [{ output: 3 }],
    ]);
    expect(calls.count('m')).toBe(0);
  });

  it('[11] JSON calls beyond the limit of concurrent calls are refused', async () => {
    const held = new HeldFunction();
    const { call } = await handlersOf({ model: { useFactory: held.useFactory } }, 1);
    const reply = firstValueFrom(call({ input: 'a' }));

    expect(await failureOf(firstValueFrom(call({ input: 'b' })))).toBeInstanceOf(OverloadedError);
    await until(() => held.batches.length === 1);
    held.next().finish([1]);
    expect(await reply).toBe(1);
  });

  it('[11] A message that cannot be read is not counted after it was refused', async () => {
    const { calls, call } = await handlersOf(echo);

    await failureOf(firstValueFrom(call({ inputs: 1 })));

    expect(calls.count('m')).toBe(0);
    await calls.drain();
  });

  it.each(['batchedRun', 'stream'])(
    '[11] A %s call ends when its client leaves, and its row leaves the queue',
    async (method) => {
      const held = new HeldFunction();
      const { serving, calls, call } = await handlersOf({
        batchSize: 1,
        model: { useFactory: held.useFactory },
      });
      call({ input: 'a' }).subscribe();
      await until(() => held.batches.length === 1);
      const waiting = call({ input: 'b', method }).subscribe();
      await until(() => serving.queued === 1);

      waiting.unsubscribe();
      await until(() => calls.count('m') === 1);

      expect(serving.queued).toBe(0);
      held.next().finish([1]);
      await calls.drain();
    },
  );

  it('[11] A stream ends when its client leaves', async () => {
    const endless = new Endless();
    const { calls, call } = await handlersOf({ model: { useFactory: endless.useFactory } });
    let events = 0;

    const stream = call({ input: 1, method: 'stream' }).subscribe(() => events++);
    await until(() => events === 3);
    stream.unsubscribe();
    await until(() => endless.isLeft);
    await calls.drain();

    expect(events).toBe(3);
  });

  it('[11] Only servings that are distributed have a JSON handler', async () => {
    expect([...(await handlersOf(echo)).handlers.keys()]).toEqual(['m']);
    expect([
      ...(await handlersOf({ ...echo, distribution: { enabled: false } })).handlers.keys(),
    ]).toEqual([]);
  });

  it('[11] JSON calls have the origin RPC', async () => {
    const { call } = await handlersOf({
      queue: { separateOrigins: true },
      model: {
        useFactory:
          () =>
          (rows: readonly unknown[], { origin }) =>
            rows.map(() => origin),
      },
    });

    expect(await firstValueFrom(call({ input: 1 }))).toBe('rpc');
    expect(await firstValueFrom(call({ input: 1, method: 'run' }))).toBe('rpc');
  });
});

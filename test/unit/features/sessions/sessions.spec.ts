import { describe, expect, it } from '@jest/globals';
import {
  Batch,
  type BatchContext,
  BatchFailedError,
  createServing,
  DeadlineExceededError,
  type FunctionRunner,
  InvalidInputError,
  InvalidServingError,
  type LocalServing,
  OverloadedError,
  PartitionLostError,
  ServingClosedError,
  type ServingDefinition,
  type ServingOptions,
  SessionEndedError,
} from 'nestjs-serving';
import { outcomeOf } from '../../../fixtures/async/outcome-of.js';
import { later, turn, useVirtualTime } from '../../../fixtures/async/virtual-time.js';
import { useServings } from '../../../fixtures/serving/use-servings.js';

type Heard = readonly string[];

type Definition = ServingOptions<string, Heard> & { readonly model: FunctionRunner };

type Changes = Partial<Definition> & Pick<FunctionRunner, 'sessions'>;

/** One batch of steps that runs until the test ends it. */
interface HeldSteps {
  readonly rows: readonly string[];
  readonly partition: number;
  end(): void;
  fail(error: Error): void;
}

/** The state of a session is the list of its rows, which is the result of each step too. */
class Listener {
  readonly batches: (readonly string[])[] = [];
  readonly partitions: number[] = [];
  readonly held: HeldSteps[] = [];
  isHolding = false;

  readonly definition: Definition = {
    name: 'listener',
    model: {
      useFactory: () => (rows: readonly string[], context: BatchContext) => this.run(rows, context),
      sessions: {},
    },
  };

  private async run(rows: readonly string[], { states, partition }: BatchContext) {
    this.batches.push(rows);
    this.partitions.push(partition);
    if (this.isHolding) {
      await new Promise<void>((end, fail) => this.held.push({ rows, partition, end, fail }));
    }
    return rows.map((row, i) => {
      states[i] = [...((states[i] as Heard | undefined) ?? []), row];
      if (row === 'throw') {
        throw new Error('a row throws');
      }
      return row === 'fail' ? new Error('a row fails') : states[i];
    });
  }
}

describe('Sessions', () => {
  const serve = useServings();
  useVirtualTime();

  async function start({ sessions = {}, ...own }: Changes = {}): Promise<{
    listener: Listener;
    serving: LocalServing<unknown, Heard>;
  }> {
    const listener = new Listener();
    const model = { ...(own.model ?? listener.definition.model), sessions };
    const definition = { ...listener.definition, ...own, model } as ServingDefinition;
    return { listener, serving: await serve<Heard>(definition) };
  }

  it('[16.1] Each call is a step from the state that the last one left, and steps of different sessions share batches', async () => {
    const { listener, serving } = await start();
    const [a, b] = [serving.open(), serving.open()];

    expect(await Promise.all([a.run('a1'), b.run('b1')])).toEqual([['a1'], ['b1']]);
    expect(await Promise.all([b.run('b2'), a.run('a2')])).toEqual([
      ['b1', 'b2'],
      ['a1', 'a2'],
    ]);
    expect(await a.run('a3')).toEqual(['a1', 'a2', 'a3']);

    expect(listener.batches).toEqual([['a1', 'b1'], ['b2', 'a2'], ['a3']]);
  });

  it('[16.2] The calls of a session run one after the other, in their order', async () => {
    const { listener, serving } = await start();
    const session = serving.open();

    const replies = await Promise.all(['1', '2', '3'].map((row) => session.run(row)));

    expect(replies).toEqual([['1'], ['1', '2'], ['1', '2', '3']]);
    expect(listener.batches).toEqual([['1'], ['2'], ['3']]);
  });

  it.each(['fail', 'throw'])(
    '[16.3] A step that fails leaves the state as it was: %s',
    async (fault) => {
      const { serving } = await start();
      const session = serving.open();
      await session.run('1');

      const failed = session.run(fault);
      const next = session.run('2');

      await expect(failed).rejects.toThrow(fault === 'fail' ? 'a row fails' : BatchFailedError);
      expect(await next).toEqual(['1', '2']);
    },
  );

  it('[16.3] A step whose caller left while it ran is made again from the state before it', async () => {
    const { listener, serving } = await start();
    const session = serving.open();
    await session.run('1');
    listener.isHolding = true;
    const late = session.run('2', { timeout: 10 });
    await later(10);
    await expect(late).rejects.toThrow(DeadlineExceededError);

    listener.isHolding = false;
    const again = session.run('2');
    listener.held[0]!.end();

    expect(await again).toEqual(['1', '2']);
    expect(await session.run('3')).toEqual(['1', '2', '3']);
  });

  it('[16.2] A call that is cancelled while it waits for its turn leaves the turns of others', async () => {
    const { listener, serving } = await start();
    const session = serving.open();
    listener.isHolding = true;
    const first = session.run('1');
    const cancel = new AbortController();
    const second = outcomeOf(session.run('2', { signal: cancel.signal }));
    const third = session.run('3');
    await turn();

    cancel.abort(new Error('not wanted'));
    await turn();
    expect(second).toEqual({ outcome: new Error('not wanted') });
    expect(listener.batches).toEqual([['1']]);

    listener.isHolding = false;
    listener.held[0]!.end();
    expect(await first).toEqual(['1']);
    expect(await third).toEqual(['1', '3']);
  });

  it.each([[8], [9]])(
    '[E2] A call that waited for its turn has moved the state on exactly if it is answered, also at its deadline (result after %i ms)',
    async (ms) => {
      const { listener, serving } = await start();
      const session = serving.open();
      listener.isHolding = true;
      const first = session.run('1');
      const second = outcomeOf(session.run('2', { timeout: 16 }));
      // The result of the second call comes at its deadline, or just after it.
      setTimeout(() => listener.held[1]!.end(), 8 + ms);
      await later(8);
      listener.held[0]!.end();
      await first;
      await later(9);
      const isAnswered = 'outcome' in second && Array.isArray(second.outcome);

      listener.isHolding = false;
      expect(await session.run('3')).toEqual(isAnswered ? ['1', '2', '3'] : ['1', '3']);
      expect(isAnswered).toBe(ms === 8);
    },
  );

  it('[E2] A call that is cancelled before its turn never runs, and is counted', async () => {
    const { listener, serving } = await start();
    const session = serving.open();
    listener.isHolding = true;
    const first = session.run('1');
    const late = outcomeOf(session.run('2', { timeout: 5 }));
    await later(5);
    expect(late).toEqual({ outcome: expect.any(DeadlineExceededError) });

    listener.isHolding = false;
    listener.held[0]!.end();
    await first;
    await turn();
    expect(listener.batches).toEqual([['1']]);
    expect(serving.counters()).toMatchObject({
      answered: 1,
      failed: { SERVING_DEADLINE_EXCEEDED: 1 },
    });
  });

  it.each(['preprocess', 'a row', 'a batch', 'postprocess'])(
    '[16.3] A session or partition that another serving has lost ends no session whose %s called it',
    async (place) => {
      const failure: { error?: Error } = {};
      const failIn = (here: string): void => {
        if (here === place && failure.error) {
          throw failure.error;
        }
      };
      const serving = await serve<number>({
        name: 'counter',
        model: {
          useFactory: () => (rows: readonly number[], batch) => {
            failIn('a batch');
            return rows.map((row, i) => {
              const states = batch.states as (number | undefined)[];
              states[i] = (states[i] ?? 0) + row;
              return place === 'a row' ? (failure.error ?? states[i]) : states[i];
            });
          },
          sessions: {},
        },
        preprocess: (row: number) => {
          failIn('preprocess');
          return { batch: row };
        },
        postprocess: (sum: number) => {
          failIn('postprocess');
          return sum;
        },
      });
      const session = serving.open();
      expect(await session.run(1)).toBe(1);

      for (failure.error of [new SessionEndedError('over'), new PartitionLostError('lost')]) {
        await expect(session.run(1)).rejects.toBe(failure.error);
      }
      failure.error = undefined;

      expect(await session.run(1)).toBe(2);
    },
  );

  it('[E11] Calls of a session that has ended, and calls that it refuses, are counted and have their events', async () => {
    const { serving } = await start();
    const ends: unknown[] = [];
    serving.eventsOf('call:end').subscribe(({ error }) => ends.push(error));
    const session = serving.open();
    const refused = [
      session.run('1', { signal: AbortSignal.abort(new Error('left')) }),
      session.run('2', { timeout: -1 }),
      session.run('3', { tenant: 'other' } as object),
    ];
    await Promise.allSettled(refused);
    await session.close();

    await expect(session.run('4')).rejects.toThrow(SessionEndedError);

    expect(ends).toHaveLength(4);
    expect(serving.counters()).toMatchObject({
      answered: 0,
      failed: { SERVING_CANCELLED: 1, SERVING_INVALID_INPUT: 2, SERVING_SESSION_ENDED: 1 },
    });
  });

  it('[16.4] Sessions are spread evenly over partitions, and stay with theirs', async () => {
    const { listener, serving } = await start({ partitions: 2 });
    const sessions = [serving.open(), serving.open(), serving.open(), serving.open()];
    const all = async (): Promise<unknown> =>
      Promise.all(sessions.map((session, i) => session.run(`${i}`)));
    await all();
    await all();

    expect(listener.batches).toEqual([
      ['0', '2'],
      ['1', '3'],
      ['0', '2'],
      ['1', '3'],
    ]);
    expect(listener.partitions).toEqual([0, 1, 0, 1]);

    await sessions[1]!.close();
    const next = serving.open();
    await next.run('next');
    expect(listener.partitions.at(-1)).toBe(1);
  });

  it('[16.10] The limits of the queue hold for the sessions of all partitions together', async () => {
    const { serving } = await start({ partitions: 2, batchSize: 1, queue: { maxRows: 3 } });
    const sessions = Array.from({ length: 4 }, () => serving.open());
    serving.pause();

    const replies = sessions.map((session) => outcomeOf(session.run('1')));
    await turn();

    expect(serving.queued).toBe(3);
    expect(replies[3]!.outcome).toBeInstanceOf(OverloadedError);
    serving.resume();
    await turn();
    expect(replies.slice(0, 3)).toEqual([
      { outcome: ['1'] },
      { outcome: ['1'] },
      { outcome: ['1'] },
    ]);
  });

  it('[16.10] As many calls as the queue has rows wait for earlier ones of their sessions', async () => {
    const { serving } = await start({ batchSize: 1, queue: { maxRows: 3 } });
    const sessions = [serving.open(), serving.open()];
    serving.pause();
    const calls = ['1', '2', '3', '4'].flatMap((input) =>
      sessions.map((session) => outcomeOf(session.run(input))),
    );
    await turn();

    const refused = calls.slice(5).map(({ outcome }) => outcome);
    expect(refused).toEqual(refused.map(() => expect.any(OverloadedError)));
    expect(refused[0]).toMatchObject({
      message:
        'Serving "listener" has 3 calls that wait for earlier ones of their sessions, and takes no ' +
        'more; wait for their answers before the next calls',
    });
    serving.resume();
    await later(10);
    expect(calls.slice(0, 5).map(({ outcome }) => outcome)).toEqual([
      ['1'],
      ['1'],
      ['1', '2'],
      ['1', '2'],
      ['1', '2', '3'],
    ]);
    expect(await sessions[1]!.run('3')).toEqual(['1', '2', '3']);
  });

  it('[16.5] At most sessions.max are open; a session that closes gives its place to another', async () => {
    const { serving } = await start({ sessions: { max: 2 } });
    const first = serving.open();
    serving.open();

    expect(() => serving.open()).toThrow(OverloadedError);
    expect(() => serving.open()).toThrow(
      'Serving "listener" has 2 open sessions and takes no more; close some, or raise sessions.max',
    );
    await first.close();
    expect(await serving.open().run('1')).toEqual(['1']);
  });

  it('[16.5] A session ends when it had no call for sessions.idle, and not while one waits', async () => {
    const { listener, serving } = await start({ sessions: { idle: 100 } });
    const session = serving.open();
    await later(99);
    listener.isHolding = true;
    const slow = session.run('1');
    await later(250);
    listener.held[0]!.end();
    expect(await slow).toEqual(['1']);
    listener.isHolding = false;
    await later(99);
    expect(await session.run('2')).toEqual(['1', '2']);

    await later(100);
    await expect(session.run('3')).rejects.toThrow(SessionEndedError);
    await expect(session.run('3')).rejects.toThrow(
      'The session has ended: it had no call for 100 ms (sessions.idle); open another one',
    );
  });

  it('[16.5] close() lets the calls that were made run, and refuses later ones', async () => {
    const { listener, serving } = await start();
    const session = serving.open();
    listener.isHolding = true;
    const [first, second] = [session.run('1'), session.run('2')];
    await turn();
    const closed = outcomeOf(session.close());
    await expect(session.run('3')).rejects.toThrow('The session has ended: it was closed');

    listener.isHolding = false;
    await turn();
    listener.held[0]!.end();
    expect(await first).toEqual(['1']);
    expect(await second).toEqual(['1', '2']);
    await turn();
    expect(closed).toEqual({ outcome: undefined });
    await session[Symbol.asyncDispose]();
  });

  it('[16.6] A serving with sessions refuses calls without one, and steps of more than one row', async () => {
    const { serving } = await start();
    const session = serving.open();
    const advice =
      'Serving "listener" keeps a state for each session; make the call in one: ' +
      'serving.open().run(input)';

    for (const call of [
      () => serving.batchedRun('1'),
      () => serving.run('1'),
      () => serving.stream('1')[Symbol.asyncIterator]().next(),
      () => serving.stream('1', { inline: true })[Symbol.asyncIterator]().next(),
    ]) {
      await expect(call()).rejects.toThrow(InvalidInputError);
      await expect(call()).rejects.toThrow(advice);
    }
    await expect(session.run(Batch.ofValues(['1', '2']))).rejects.toThrow(
      'A call of a session of serving "listener" is one step of one row, and not of 2',
    );
    await expect(session.run([Batch.ofValue('1')].values())).rejects.toThrow(
      'is one step of one row, and not a sequence',
    );
    expect(await session.run('1')).toEqual(['1']);
  });

  it('[16.6] A serving without sessions has none to open', async () => {
    const { useFactory } = new Listener().definition.model;
    const serving = await serve({ name: 'listener', model: { useFactory } });

    expect(() => serving.open()).toThrow(InvalidServingError);
    expect(() => serving.open()).toThrow(
      'Serving "listener" has no sessions; give its model the option sessions or state',
    );
  });

  it('[16.6] Options of a session and of its calls are checked', async () => {
    const { serving } = await start();

    expect(() => serving.open({ priority: 1 } as object)).toThrow(
      'A session of serving "listener" has the option "priority"; allowed are tenant, key and ' +
        'version, and others with each call',
    );
    expect(() => serving.open({ tenant: 1 } as object)).toThrow(InvalidInputError);
    await expect(serving.open().run('1', { timeouts: 1 } as object)).rejects.toThrow(
      'unknown option "timeouts"',
    );
  });

  it('[16.6] A generator cannot make the steps of sessions', async () => {
    const { serving } = await start({
      model: {
        useFactory: () =>
          function* (rows: readonly string[]) {
            yield rows;
          },
      },
    });

    await expect(serving.open().run('1')).rejects.toThrow(
      'A step from a state has one result, and the batch function is a generator',
    );
  });

  it.each([
    [
      { deduplication: { singleFlight: true } },
      'deduplication has no effect with sessions, whose calls with the same input have different states',
    ],
    [{ batchSize: { latencyTarget: 50 } }, 'a latencyTarget cannot size the batches of sessions'],
    [
      { sessions: { max: 0 } },
      'option "model.sessions.max" is 0; allowed is a whole number from 1',
    ],
    [
      { sessions: { idle: 0 } },
      'option "model.sessions.idle" is 0; allowed is milliseconds from 1',
    ],
  ])('[16.6] Contradictory options fail the start: %j', async (own, message) => {
    await expect(start(own)).rejects.toThrow(message);
  });

  it('[16.7] Shutdown lets the steps that were made end; later ones and new sessions are refused', async () => {
    const { listener, serving } = await start();
    const session = serving.open();
    listener.isHolding = true;
    const step = session.run('1');
    await turn();
    const closing = serving.close();

    expect(() => serving.open()).toThrow(ServingClosedError);
    listener.held[0]!.end();
    expect(await step).toEqual(['1']);
    await closing;
    await expect(session.run('2')).rejects.toThrow(/closed/);
  });

  it('[16.1] A serving that was not started has no sessions yet', () => {
    const serving = createServing(new Listener().definition);

    expect(() => serving.open()).toThrow(ServingClosedError);
    expect(() => serving.open()).toThrow('has not been started');
  });
});

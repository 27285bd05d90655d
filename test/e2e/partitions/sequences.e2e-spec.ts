import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { once } from 'node:events';
import { get, type IncomingMessage } from 'node:http';
import { describe, expect, it } from '@jest/globals';
import { Controller, type MessageEvent, Param, Sse } from '@nestjs/common';
import {
  BatchFailedError,
  InvalidOutputError,
  InvalidServingError,
  type LocalServing,
  PartitionLostError,
  RunTimeoutError,
  type SequenceStepEvent,
  type ServingDefinition,
  ServingModule,
  ServingService,
} from 'nestjs-serving';
import { lastValueFrom, map, type Observable, takeWhile, toArray } from 'rxjs';
import { failureOf } from '../../fixtures/async/failure-of.js';
import { iterated, outputsOf, until } from '../../fixtures/async/streams.js';
import { describeOnPlatforms } from '../../fixtures/partitions/platforms.js';
import { worker } from '../../fixtures/partitions/worker.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

interface Row {
  readonly name: string;
  readonly steps?: number;
  readonly fault?: 'exits' | 'hangs' | 'throws' | 'uncloneable' | 'unreadable' | 'error';
  readonly at?: number;
  readonly size?: number;
}

const FOREVER = 1e9;
const row = (name: string, steps: number, more: Partial<Row> = {}): Row => ({
  name,
  steps,
  ...more,
});
const valuesOf = (name: string, steps: number): string[] =>
  Array.from({ length: steps }, (_, i) => `${name}${i}`);

/** What the model of the first free partition did so far. */
const logOf = async (serving: LocalServing): Promise<string[]> =>
  ((await serving.batchedRun({ name: 'log' })) as string[][])[0]!;

/** The same, once it has the line. */
async function logOnce(serving: LocalServing, line: string): Promise<string[]> {
  for (let log = await logOf(serving); ; log = await logOf(serving)) {
    if (log.includes(line)) {
      return log;
    }
  }
}

describe.each(['thread', 'process'] as const)('A sequence in a %s', (isolation) => {
  const serve = useServings();
  const start = (
    { sequence = {}, ...options }: Partial<ServingDefinition> & { readonly sequence?: object } = {},
    pace = 0,
  ): Promise<LocalServing> =>
    serve({
      name: 'sequence',
      model: { useFile: worker('sequence'), sequence, isolation },
      batchSize: 4,
      partitions: [{ pace }],
      ...options,
    });

  it('[13.1] Rows join and leave while others run', async () => {
    const serving = await start({}, 1);
    const long = serving.stream(row('a', FOREVER));
    let isOver = false;
    const events = lastValueFrom(
      long.pipe(
        takeWhile(() => !isOver),
        toArray(),
      ),
    );
    for (let call = 0; call < 5; call++) {
      await expect(serving.batchedRun(row('b', 2))).resolves.toEqual(['b0', 'b1']);
    }
    isOver = true;
    const outputs = outputsOf(await events);
    const log = await logOf(serving);

    expect(outputs.length).toBeGreaterThan(0);
    expect(outputs).toEqual(valuesOf('a', outputs.length));
    expect(log.filter((line) => line === 'end b ended')).toHaveLength(5);
  });

  it('[13.12] The steps in a worker emit events, for which its rows are no slower to end', async () => {
    const serving = await start({ batchSize: 2, partitions: [{ pace: 1 }, { pace: 1 }] });
    const steps: SequenceStepEvent[] = [];
    serving.eventsOf('sequence:step').subscribe((event) => steps.push(event));

    const replies = await Promise.all(
      ['a', 'b', 'c', 'd', 'e'].map((name) => serving.batchedRun(row(name, 3))),
    );

    expect(replies).toEqual(['a', 'b', 'c', 'd', 'e'].map((name) => valuesOf(name, 3)));
    expect(new Set(steps.map(({ partition }) => partition))).toEqual(new Set([0, 1]));
    expect(steps.every(({ rows, waiting }) => rows >= 1 && rows <= 2 && waiting >= 0)).toBe(true);
    expect(steps.every(({ runTime }) => runTime > 0)).toBe(true);
  });

  it('[13.12] The steps of a warm-up in a worker emit no event', async () => {
    const steps: unknown[] = [];
    const note = (event: unknown): void => void steps.push(event);
    subscribe('nestjs-serving:sequence:step', note);
    const serving = await start({ warmUp: [row('w', 3)] });
    expect(steps).toEqual([]);
    await serving.batchedRun(row('a', 2));
    unsubscribe('nestjs-serving:sequence:step', note);

    expect(steps.length).toBeGreaterThan(0);
  });

  it('[13.2] Each of many calls gets its own values, all of them, in order', async () => {
    const serving = await start();
    const steps = Array.from({ length: 50 }, (_, i) => (i * 37) % 300);
    const replies = await Promise.all(
      steps.map((count, i) =>
        i % 2 === 0
          ? serving.batchedRun(row(`r${i}.`, count))
          : iterated(serving.stream(row(`r${i}.`, count))).then(outputsOf),
      ),
    );

    expect(replies).toEqual(steps.map((count, i) => valuesOf(`r${i}.`, count)));
    const log = await logOf(serving);
    expect(log.filter((line) => line.startsWith('end'))).toHaveLength(50);
  });

  it('[13.3] The place of a caller that leaves is free, also where its row has not joined yet', async () => {
    const serving = await start({ batchSize: 2, sequence: { maxCost: 100_000 } }, 1);
    const long = serving.stream(row('a', FOREVER))[Symbol.asyncIterator]();
    await long.next();
    const leaving = new AbortController();
    const large = row('b', 1, { size: 99_999 });
    const waiting = failureOf(serving.batchedRun(large, { signal: leaving.signal }));
    await until(() => serving.queued === 0);
    leaving.abort(new Error('gone'));
    await expect(waiting).resolves.toEqual(new Error('gone'));
    await expect(serving.batchedRun(row('c', 1))).resolves.toEqual(['c0']);
    await long.return!();
    const log = await logOnce(serving, 'end a cancelled');

    expect(log.filter((line) => line.includes(' b'))).toEqual([]);
  });

  it.each([
    ['sent', 'uncloneable', BatchFailedError],
    ['read', 'unreadable', InvalidOutputError],
  ] as const)('[13.4] A value that cannot be %s fails its own call', async (_, fault, kind) => {
    const serving = await start();
    const calls = [row('a', 5, { fault, at: 2 }), row('b', 9)].map((input) =>
      serving.batchedRun(input),
    );

    await expect(calls[0]).rejects.toThrow(kind);
    await expect(calls[1]).resolves.toEqual(valuesOf('b', 9));
  });

  it('[13.4] A step that throws fails the rows that are present, and the worker goes on', async () => {
    const serving = await start({ recovery: { idempotent: true } }, 1);
    const values = serving.stream(row('a', FOREVER))[Symbol.asyncIterator]();
    await values.next();
    const faulty = failureOf(serving.batchedRun(row('b', FOREVER, { fault: 'throws', at: 3 })));
    const present = failureOf(
      (async () => {
        while (!(await values.next()).done);
      })(),
    );
    const failed = await Promise.all([faulty, present]);

    expect(failed.map((error) => (error as Error).cause)).toEqual([
      new RangeError('no memory'),
      new RangeError('no memory'),
    ]);
    const log = await logOf(serving);
    expect(log).toEqual(['start a', 'start b', 'end a failed', 'end b failed', 'start log']);
  });

  it('[13.4] The rows of a lost worker that have values fail, and those without run again', async () => {
    const serving = await start(
      {
        recovery: { idempotent: true, restartDelay: 0 },
        batchSize: 3,
        sequence: { maxCost: 1000 },
      },
      1,
    );
    const long = serving.stream(row('a', FOREVER, { fault: 'exits', at: 40 }));
    const values = long[Symbol.asyncIterator]();
    await values.next();
    const present = serving.batchedRun(row('b', FOREVER));
    const waiting = serving.batchedRun(row('c', 2, { size: 997 }));
    const rest = (async () => {
      while (!(await values.next()).done);
    })();

    await expect(rest).rejects.toThrow(PartitionLostError);
    await expect(present).rejects.toThrow(PartitionLostError);
    await expect(waiting).resolves.toEqual(['c0', 'c1']);
    expect(serving.partitions()).toMatchObject([{ state: 'up', restarts: 1 }]);
  });

  it('[13.9] Closing waits for all rows', async () => {
    const serving = await start({ batchSize: 2 }, 1);
    const calls = ['a', 'b', 'c'].map((name) => serving.batchedRun(row(name, 10)));
    await until(() => serving.queued === 1);
    await serving.close();

    await expect(Promise.all(calls)).resolves.toEqual(['a', 'b', 'c'].map((n) => valuesOf(n, 10)));
  });

  it('[13.9] At the limit of shutdown the rows that are left are answered as closed', async () => {
    const serving = await start({ shutdown: { timeout: 50 } }, 1);
    const endless = failureOf(serving.batchedRun(row('a', FOREVER)));
    await serving.close();

    await expect(endless).resolves.toMatchObject({ code: 'SERVING_CLOSED' });
  });

  it('[13.8] A warm-up runs one step of each example', async () => {
    const serving = await start({ warmUp: [row('a', FOREVER)] });

    await expect(logOf(serving)).resolves.toEqual(['start a', 'end a cancelled', 'start log']);
  });

  it('[13.10] A file that returns no model of a sequence fails the start', async () => {
    await expect(start({ model: { useFile: worker('echo'), sequence: {} } })).rejects.toThrow(
      new InvalidServingError(
        'Serving "sequence": A sequence needs an object with start, step; for partition 0 and key ' +
          '"default" it got [Function (anonymous)], without start, step',
      ),
    );
  });
});

describe('A sequence in processes', () => {
  const serve = useServings();
  const start = ({
    sequence = {},
    ...options
  }: Partial<ServingDefinition> & { readonly sequence?: object }): Promise<LocalServing> =>
    serve({
      name: 'sequence',
      model: { useFile: worker('sequence'), sequence, isolation: 'process' },
      ...options,
    });

  it('[13.4] When a process is killed, its rows with values fail, those of the other process go on, and a retry finds it', async () => {
    const serving = await start({
      batchSize: 1,
      partitions: [{ pace: 1 }, { pace: 1 }],
      recovery: { restartDelay: 0 },
    });
    const [pid] = (await serving.batchedRun({ name: 'pid' })) as [number];
    const counts = [0, 0];
    const calls = ['a', 'b'].map(async (name, i) => {
      for await (const _ of serving.stream(row(name, 200))) {
        counts[i]!++;
      }
    });
    await until(() => counts.every((count) => count > 2));
    process.kill(pid, 'SIGKILL');
    const outcomes = await Promise.allSettled(calls);

    expect(outcomes.map(({ status }) => status).toSorted()).toEqual(['fulfilled', 'rejected']);
    const lost = outcomes.find(({ status }) => status === 'rejected') as PromiseRejectedResult;
    expect(lost.reason).toBeInstanceOf(PartitionLostError);
    await until(() => serving.partitions().every(({ state }) => state === 'up'));
    await expect(
      Promise.all(['c', 'd'].map((name) => serving.batchedRun(row(name, 3)))),
    ).resolves.toEqual([valuesOf('c', 3), valuesOf('d', 3)]);
  });

  it('[13.4] While processes are killed, each reader gets its own values in order, and then its end or the loss', async () => {
    const serving = await start({
      batchSize: 4,
      partitions: [{ pace: 1 }, { pace: 1 }],
      recovery: { idempotent: true, restartDelay: 0, maxRestarts: 100 },
      sequence: { joins: { rows: 2 }, maxCost: 150 },
    });
    const outcomes = Array.from({ length: 60 }, async (_, i) => {
      const got: unknown[] = [];
      try {
        for await (const { output } of serving.stream(row(`r${i}.`, (i * 17) % 60))) {
          got.push(output);
        }
        return { got, error: undefined };
      } catch (error) {
        return { got, error };
      }
    });
    for (let kill = 0; kill < 3; kill++) {
      const [pid] = (await serving.batchedRun({ name: 'pid' })) as [number];
      process.kill(pid, 'SIGKILL');
    }
    const ended = await Promise.all(outcomes);

    ended.forEach(({ got, error }, i) => {
      const all = valuesOf(`r${i}.`, (i * 17) % 60);
      expect(got).toEqual(error ? all.slice(0, got.length) : all);
      expect([undefined, PartitionLostError]).toContain(error?.constructor);
    });
    expect(ended.some(({ error }) => error === undefined)).toBe(true);
    expect(ended.some(({ error }) => error !== undefined)).toBe(true);
  });

  it('[13.9] A step that hangs fails its rows after the run timeout, and the process is started again', async () => {
    const serving = await start({
      partitions: [{ pace: 5 }],
      recovery: { runTimeout: 500, restartDelay: 0 },
    });
    const calls = [row('a', FOREVER, { fault: 'hangs', at: 9 }), row('b', FOREVER)];
    const failed = await Promise.all(calls.map((input) => failureOf(serving.batchedRun(input))));

    expect(failed).toEqual([expect.any(RunTimeoutError), expect.any(RunTimeoutError)]);
    expect((failed[0] as Error).message).toBe(
      'Partition 0 has run a step of 2 rows for over 500 ms, and is restarted; raise ' +
        'recovery.runTimeout if steps may take so long',
    );
    await expect(serving.batchedRun(row('c', 2))).resolves.toEqual(['c0', 'c1']);
  });
});

const counter = {
  name: 'sequence',
  model: { useFile: worker('sequence'), sequence: {} },
  batchSize: 1,
  partitions: [{ pace: 1 }],
};

@Controller()
class CounterController {
  constructor(private readonly servings: ServingService) {}

  @Sse('count/:name/:steps')
  count(@Param() { name, steps }: { name: string; steps: string }): Observable<MessageEvent> {
    return this.servings
      .stream<Row, string>('sequence', row(name, Number(steps)))
      .pipe(map(({ output }) => ({ data: { output } })));
  }
}

const metadata = {
  imports: [ServingModule.forRoot({ servings: [counter] })],
  controllers: [CounterController],
};

describeOnPlatforms('A sequence over HTTP', (listen) => {
  it('[13.3] A browser that leaves a stream frees its place for the next one', async () => {
    const { app } = await listen(metadata);
    const url = await app.getUrl();
    const [response] = (await once(
      get(`${url}/count/a/1000000000`, { agent: false }),
      'response',
    )) as [IncomingMessage];
    await once(response, 'data');
    const next = fetch(`${url}/count/b/3`).then((reply) => reply.text());
    response.destroy();
    const body = await next;

    expect(body.match(/b\d/g)).toEqual(['b0', 'b1', 'b2']);
    const serving = app.get(ServingService).get('sequence') as LocalServing;
    await expect(logOnce(serving, 'end a cancelled')).resolves.toContain('start a');
  });
});

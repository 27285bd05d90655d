import { beforeEach, describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import {
  DONE,
  InvalidOutputError,
  last,
  PENDING,
  RequestTooLargeError,
  type SequenceEnd,
  type SequenceModel,
  type SequenceStep,
} from 'nestjs-serving';
import {
  SequenceLoop,
  type SequenceRow,
} from '../../../../lib/features/sequences/sequence-loop.js';
import { failureOf } from '../../../fixtures/async/failure-of.js';
import { turn } from '../../../fixtures/async/virtual-time.js';
import { type CountedRow, CountingModel } from '../../../fixtures/partitions/counting-model.js';

type AnyModel = SequenceModel<unknown, unknown, unknown>;

const NO_LIMITS = { joinRows: Infinity, joinCost: Infinity, maxCost: Infinity };

const revoked = (): object => {
  const { proxy, revoke } = Proxy.revocable({}, {});
  revoke();
  return proxy;
};

/** A value that throws when its `then` is read. */
const faultyThen = (): object =>
  new Proxy(
    {},
    {
      has: (_, name) => name === 'then',
      get: (_, name) => {
        if (name === 'then') {
          throw new Error('then');
        }
        return undefined;
      },
    },
  );

describe('A sequence loop', () => {
  let model: CountingModel;
  let got: unknown[];
  const left = new Set<string>();

  beforeEach(() => {
    model = new CountingModel();
    got = [];
    left.clear();
  });

  /** A loop of one model. */
  const loopOf = (limits: Partial<typeof NO_LIMITS> = {}, own: object = model) => {
    const loop = new SequenceLoop({ ...NO_LIMITS, ...limits });
    return { run: (row: SequenceRow) => loop.run(own as AnyModel, row) };
  };

  /** Runs a row, and notes its values as they come. */
  function run(
    loop: ReturnType<typeof loopOf>,
    row: CountedRow,
    emit = (value: unknown) => void got.push(value),
  ) {
    return loop.run({
      input: row,
      isWaiting: () => !left.has(row.name),
      emit,
      hooks: row.hook === undefined ? [] : [row.hook],
      hook: (name, value) => void got.push({ [name]: value }),
    });
  }

  it('[13.1] A row joins those that run before the next step, and leaves when it has ended', async () => {
    const loop = loopOf();
    const [a, b] = [run(loop, { name: 'a', steps: 4 }), run(loop, { name: 'b', steps: 1 })];
    await b;
    await Promise.all([a, run(loop, { name: 'c', steps: 2 })]);

    expect(got).toEqual(['a0', 'b0', 'a1', 'a2', 'c0', 'a3', 'c1']);
    expect(model.log).toEqual([
      'start a b',
      'step! a b',
      'step a b',
      'end b ended',
      'start c',
      'step! a c',
      'step a c',
      'step a c',
      'end a ended',
      'end c ended',
    ]);
  });

  it('[13.8] The values of a hook go to the rows that ask for it, each its own', async () => {
    const loop = loopOf();
    model.hook = 'length';
    const rows = [
      { name: 'a', steps: 2, marked: true, hook: 'length' },
      { name: 'b', steps: 1, marked: true },
      { name: 'c', steps: 1, marked: true, hook: 'other' },
    ];
    await Promise.all(rows.map((row) => run(loop, row)));

    expect(got).toEqual([
      { length: 'a!' },
      { length: 'a0' },
      'a0',
      'b0',
      'c0',
      { length: 'a1' },
      'a1',
    ]);
  });

  it('[13.8] A hook with another number of values than rows fails the step', async () => {
    const silent = {
      start: () => ['state'],
      step(_: unknown, { emit }: SequenceStep) {
        emit('h', []);
        return ['value'];
      },
    };
    const failed = run(loopOf({}, silent), { name: 'a', steps: 1 });

    await expect(failed).rejects.toThrow(
      'Hook "h" of a sequence needs an entry for each of the 1 rows of the call that emits it; it was given a list of 0',
    );
    await expect(failed).rejects.toThrow(InvalidOutputError);
  });

  it('[13.2] The last value of a row ends it without a further step', async () => {
    await run(loopOf(), { name: 'a', steps: 2, marked: true });

    expect(got).toEqual(['a0', 'a1']);
    expect(model.log).toEqual(['start a', 'step! a', 'step a', 'end a ended']);
  });

  it('[13.2] The values of promises in the list of a step are awaited', async () => {
    const results = [() => Promise.resolve('later'), () => Promise.reject(new RangeError('never'))];
    const step = () => [results.shift()!()];
    const loop = loopOf({}, { start: () => ['state'], step });

    await run(loop, { name: 'a', steps: 2 });

    expect(got).toEqual(['later', new RangeError('never')]);
  });

  /** Makes a row PENDING in its first `size` steps, and then goes on as it does. */
  class SlowModel extends CountingModel {
    private readonly steps = new Map<string, number>();

    override step(...[states, context]: Parameters<CountingModel['step']>) {
      const ready = states.filter(({ row: { name, size = 0 } }) => {
        const steps = (this.steps.get(name) ?? 0) + 1;
        this.steps.set(name, steps);
        return steps > size;
      });
      const results = super.step(ready, context);
      return states.map((state) =>
        ready.includes(state) ? results[ready.indexOf(state)]! : (PENDING as never),
      );
    }

    override cost(_: CountedRow, values: number): number {
      return values;
    }
  }

  it('[8.6] A row that is PENDING stays without a value, and gives its values later', async () => {
    model = new SlowModel();
    const loop = loopOf();
    await Promise.all([
      run(loop, { name: 'a', steps: 2, marked: true, size: 3 }),
      run(loop, { name: 'b', steps: 5, marked: true }),
      run(loop, { name: 'c', steps: 0, size: 2 }),
    ]);

    expect(got).toEqual(['b0', 'b1', 'b2', 'a0', 'b3', 'a1', 'b4']);
    expect(model.log.filter((line) => !line.startsWith('step'))).toEqual([
      'start a b c',
      'end c ended',
      'end a ended',
      'end b ended',
    ]);
  });

  it('[8.6] A promise of PENDING is as PENDING', async () => {
    const results = [() => Promise.resolve(PENDING), () => 'later', () => DONE];
    const step = () => [results.shift()!()];
    await run(loopOf({}, { start: () => ['state'], step }), { name: 'a', steps: 1 });

    expect(got).toEqual(['later']);
  });

  it('[8.6] A PENDING row leaves with its caller, and fails with its step', async () => {
    model = new SlowModel();
    const loop = loopOf();
    const row = run(loop, { name: 'a', steps: 1, size: 1000 });
    await run(loop, { name: 'b', steps: 2 });
    left.add('a');
    await row;
    expect(model.log).toContain('end a cancelled');

    left.clear();
    const failing = failureOf(run(loop, { name: 'c', steps: 1, size: 1000 }));
    await run(loop, { name: 'd', steps: 1 });
    const fault = new Error('no memory');
    model.fail({ step: fault });
    expect(await failing).toBe(fault);
    expect(model.counts).toEqual({ started: 4, ended: 4 });
  });

  it('[8.6] [13.6] PENDING costs nothing, and is no value of a row that is paused', async () => {
    model = new SlowModel();
    const loop = loopOf({ maxCost: 5 });
    await Promise.all([
      run(loop, { name: 'a', steps: 4, marked: true, size: 2 }),
      run(loop, { name: 'b', steps: 4, marked: true }),
    ]);

    expect(got).toEqual(['b0', 'b1', 'a0', 'b2', 'a1', 'a2', 'a3', 'b3']);
    expect(model.log.filter((line) => line.startsWith('start'))).toEqual([
      'start a b',
      'start b+++',
    ]);
  });

  it('[13.3] A row that no caller waits for leaves before the next step, and its state ends', async () => {
    const loop = loopOf();
    const ended = run(loop, { name: 'a', steps: 1000 }, (value) => {
      got.push(value);
      left.add('a');
    });
    await Promise.all([ended, run(loop, { name: 'b', steps: 1 })]);

    expect(got).toEqual(['a0', 'b0']);
    expect(model.log).toContain('end a cancelled');
    expect(model.counts).toEqual({ started: 2, ended: 2 });
  });

  it('[13.3] A row that no caller waits for before it has joined never starts', async () => {
    left.add('a');
    await run(loopOf(), { name: 'a', steps: 3 });

    expect(model.log).toEqual([]);
  });

  it('[13.4] An Error in the list of start or step fails its own row', async () => {
    const loop = loopOf();
    await Promise.all([
      run(loop, { name: 'a', steps: -1 }),
      run(loop, { name: 'b', steps: 9, failsAt: 1 }),
      run(loop, { name: 'c', steps: 2 }),
    ]);

    expect(got).toEqual([new RangeError('a'), 'b0', 'c0', new RangeError('b1'), 'c1']);
    expect(model.log.filter((line) => line.startsWith('end'))).toEqual([
      'end b failed',
      'end c ended',
    ]);
  });

  it('[13.4] When start throws, the rows that were to join fail, and the others go on', async () => {
    const loop = loopOf();
    const fault = new Error('no memory');
    const a = run(loop, { name: 'a', steps: 3 });
    await turn();
    model.fail({ start: fault });
    const joining = ['b', 'c'].map((name) => failureOf(run(loop, { name, steps: 1 })));

    await expect(Promise.all(joining)).resolves.toEqual([fault, fault]);
    await a;
    expect(got).toEqual(['a0', 'a1', 'a2']);
    expect(model.counts).toEqual({ started: 1, ended: 1 });
  });

  it('[13.4] When a step throws, all present rows fail, none runs again, and new rows run', async () => {
    const loop = loopOf();
    const fault = new Error('no memory');
    model.fail({ step: fault });
    const rows = ['a', 'b'].map((name) => failureOf(run(loop, { name, steps: 1 })));

    await expect(Promise.all(rows)).resolves.toEqual([fault, fault]);
    expect(model.log).toEqual(['start a b', 'step! a b', 'end a failed', 'end b failed']);
    delete (model as unknown as { faults: { step?: Error } }).faults.step;
    await run(loop, { name: 'c', steps: 1 });
    expect(got).toEqual(['c0']);
  });

  it.each([
    [
      'start',
      { start: () => [] },
      'start(inputs) of a sequence must return a list with an entry for each of its 1 row; it returned a list of 0',
    ],
    [
      'step',
      { start: () => [1], step: () => 'a' },
      'step(states) of a sequence must return a list with an entry for each of its 1 row; it returned "a"',
    ],
  ])('[13.4] A result of %s without an entry per row fails the rows', async (_, own, message) => {
    const failed = run(loopOf({}, own), { name: 'a', steps: 1 });

    await expect(failed).rejects.toThrow(new InvalidOutputError(message));
  });

  it('[13.4] A value that cannot be handed out, or an end that throws, fails its own row', async () => {
    const fault = new Error('cannot be cloned');
    const broken = new Error('cannot be freed');
    class BrokenModel extends CountingModel {
      override end(...ended: Parameters<CountingModel['end']>): void {
        super.end(...ended);
        if (ended[0].row.name === 'b') {
          throw broken;
        }
      }
    }
    model = new BrokenModel();
    const loop = loopOf();
    const outcomes = Promise.all([
      failureOf(
        run(loop, { name: 'a', steps: 3 }, () => {
          throw fault;
        }),
      ),
      failureOf(run(loop, { name: 'b', steps: 1 })),
      failureOf(run(loop, { name: 'c', steps: 2 })),
    ]);

    await expect(outcomes).resolves.toEqual([fault, broken, undefined]);
    expect(got).toEqual(['b0', 'c0', 'c1']);
    expect(model.counts).toEqual({ started: 3, ended: 3 });
  });

  it('[13.5] No more rows join before one step than joins.rows', async () => {
    const loop = loopOf({ joinRows: 2 });
    await Promise.all(['a', 'b', 'c'].map((name) => run(loop, { name, steps: 2 })));

    expect(model.log.slice(0, 4)).toEqual(['start a b', 'step! a b', 'start c', 'step! a b c']);
  });

  it('[13.5] Rows that join before one step cost no more than joins.cost, unless it is one row', async () => {
    const loop = loopOf({ joinCost: 10 });
    await Promise.all(
      [30, 4, 6, 1].map((size, i) => run(loop, { name: 'abcd'[i]!, steps: 2, size })),
    );

    expect(model.log.filter((line) => line.startsWith('start'))).toEqual([
      'start a',
      'start b c',
      'start d',
    ]);
  });

  it('[13.6] While the rows would cost more than maxCost, the youngest is paused, and starts again with its values', async () => {
    const loop = loopOf({ maxCost: 6 });
    await Promise.all([
      run(loop, { name: 'a', steps: 4, marked: true }),
      run(loop, { name: 'b', steps: 4, marked: true }),
    ]);

    expect(got).toEqual(['a0', 'b0', 'a1', 'b1', 'a2', 'b2', 'a3', 'b3']);
    expect(model.log).toEqual([
      'start a b',
      'step! a b',
      'step a b',
      'step a b',
      'end b paused',
      'step! a',
      'end a ended',
      'start b+++',
      'step! b',
      'end b ended',
    ]);
  });

  it('[13.6] A paused row starts before rows that are new', async () => {
    const loop = loopOf({ maxCost: 4, joinRows: 3 });
    await Promise.all(
      ['a', 'b', 'c', 'd'].map((name) =>
        run(loop, { name, steps: name === 'd' ? 1 : 3, marked: true }),
      ),
    );

    const starts = model.log.filter((line) => line.startsWith('start'));
    expect(starts).toEqual(['start a b c', 'start b++', 'start c+ d']);
    expect(model.counts).toEqual({ started: 6, ended: 6 });
  });

  it('[13.6] A row is paused four times at most', async () => {
    // Without the limit the fifth of these rows would be paused five times.
    const sizes = [
      [24, 6],
      [19, 0],
      [5, 6],
      [3, 5],
      [20, 7],
      [30, 1],
      [2, 1],
    ] as const;
    const rows = sizes.map(([steps, size], i) => ({ name: `r${i}.`, steps, size, marked: true }));
    const loop = loopOf({ maxCost: 38 });
    await Promise.all(rows.map((row) => run(loop, row)));

    const pauses = rows.map(
      ({ name }) => model.log.filter((line) => line === `end ${name} paused`).length,
    );
    expect(Math.max(...pauses)).toBe(4);
    expect(got).toHaveLength(rows.reduce((sum, { steps }) => sum + steps, 0));
  });

  it('[13.6] Of rows that were paused four times, one is present at a time, and all end', async () => {
    // Without that limit, the rows that are present could not be paused, and would cost too much.
    const steps = [10, 8, 53, 10, 53, 44, 55, 45, 59, 32, 42, 53, 40];
    const sizes = [6, 2, 3, 3, 5, 6, 1, 6, 2, 3, 2, 2, 0];
    const loop = loopOf({ maxCost: 66 });
    await Promise.all(
      steps.map((own, i) =>
        run(loop, { name: `r${i}.`, steps: own, size: sizes[i]!, marked: true }),
      ),
    );

    expect(got).toHaveLength(steps.reduce((sum, own) => sum + own, 0));
    expect(new Set(got).size).toBe(got.length);
  });

  it('[13.7] A row that costs more than maxCost by itself is refused, and keeps no other from joining', async () => {
    const loop = loopOf({ maxCost: 6 });
    const [large, small] = [
      failureOf(run(loop, { name: 'a', steps: 1, size: 6 })),
      run(loop, { name: 'b', steps: 1 }),
    ];

    await expect(large).resolves.toEqual(
      new RequestTooLargeError(
        'A row with its next value costs 7, and all rows of a partition may cost 6 together; ' +
          'give shorter rows, or raise sequence.maxCost',
      ),
    );
    await small;
    expect(got).toEqual(['b0']);
  });

  it('[13.7] A row that grows beyond maxCost fails, after the values that fit', async () => {
    const outcome = await failureOf(run(loopOf({ maxCost: 2 }), { name: 'a', steps: 9 }));

    expect(outcome).toBeInstanceOf(RequestTooLargeError);
    expect(got).toEqual(['a0', 'a1']);
    expect(model.log.at(-1)).toBe('end a failed');
  });

  it.each([NaN, -1, '1'])('[13.7] A cost of %p fails its own row', async (cost) => {
    const own = { start: () => [0], step: () => [0], cost: () => cost };

    await expect(run(loopOf({ maxCost: 2 }, own), { name: 'a', steps: 1 })).rejects.toThrow(
      'cost(input, values) of a sequence must return a number of 0 or more',
    );
  });

  it.each<[string, () => unknown, boolean]>([
    ['a revoked Proxy', revoked, false],
    ['last(a revoked Proxy)', () => last(revoked()), false],
    ['an object whose then throws', faultyThen, false],
    ['last(an object whose then throws)', () => last(faultyThen()), false],
    ['a rejected promise', () => Promise.reject(new Error('rejected')), true],
    ['last(a rejected promise)', () => last(Promise.reject(new Error('rejected'))), true],
    [
      'a promise of last(a rejected promise)',
      async () => last(Promise.reject(new Error('no'))),
      true,
    ],
    ['a promise of an Error', async () => new Error('an Error'), true],
  ])('[E8] A step that gives a row %s holds no other row', async (_, result, isFailed) => {
    const odd = {
      start: (rows: readonly CountedRow[]) => rows.map((row) => ({ row, next: 0 })),
      step: (states: readonly { row: CountedRow; next: number }[]) =>
        states.map((state) => {
          const isFirst = state.next++ === 0;
          return state.row.name === 'odd' && isFirst
            ? result()
            : state.next > 3
              ? DONE
              : `${state.row.name}${state.next}`;
        }),
    };
    const loop = loopOf({}, odd);
    const rows = [
      run(loop, { name: 'odd', steps: 0 }, () => {}),
      run(loop, { name: 'a', steps: 0 }),
    ];
    const [ended] = await Promise.allSettled(rows);

    expect(ended!.status).toBe(isFailed ? 'fulfilled' : ended!.status);
    expect(got).toEqual(['a1', 'a2', 'a3']);
    await run(loop, { name: 'b', steps: 0 });
    expect(got.slice(3)).toEqual(['b1', 'b2', 'b3']);
  });

  it('[E8] The promise in last is awaited, and its value is the last of its row', async () => {
    const once = {
      start: (rows: readonly CountedRow[]) => rows,
      step: (rows: readonly CountedRow[]) =>
        rows.map(({ name }) =>
          name === 'a' ? last(Promise.resolve('word')) : Promise.resolve(last('other')),
        ),
    };
    const loop = loopOf({}, once);
    await Promise.all(['a', 'b'].map((name) => run(loop, { name, steps: 1 })));
    expect(got).toEqual(['word', 'other']);
  });

  it('[E8] The promises in the list of start are awaited, and a rejected one fails its own row', async () => {
    const late = {
      start: (rows: readonly CountedRow[]) =>
        rows.map(async ({ name }) => {
          if (name === 'bad') {
            throw new RangeError(name);
          }
          return name;
        }),
      step: (names: readonly string[]) => names.map((name) => last(name)),
    };
    const loop = loopOf({}, late);
    await Promise.all(['bad', 'good'].map((name) => run(loop, { name, steps: 1 })));
    expect(got).toEqual([new RangeError('bad'), 'good']);
  });

  it('[E8] A hook that cannot be sent fails its own row, and no other', async () => {
    const loop = new SequenceLoop(NO_LIMITS);
    model.hook = 'length';
    const row = (name: string, hook: () => void) =>
      loop.run(model, {
        input: { name, steps: 2, marked: true },
        isWaiting: () => true,
        emit: (value) => void got.push(value),
        hooks: ['length'],
        hook,
      });
    const bad = failureOf(
      row('bad', () => {
        throw new RangeError('cannot be sent');
      }),
    );
    await row('a', () => {});

    expect(await bad).toEqual(new RangeError('cannot be sent'));
    expect(got).toEqual(['a0', 'a1']);
    expect(model.counts).toEqual({ started: 2, ended: 2 });
  });

  it('[E8] A reader that fails while its row waits for room fails its own row', async () => {
    const loop = new SequenceLoop(NO_LIMITS);
    let asked = 0;
    const broken = failureOf(
      loop.run(model, {
        input: { name: 'bad', steps: 5 },
        isWaiting: () => true,
        emit: () => {},
        hooks: [],
        hook: () => {},
        room: async () => {
          if (++asked === 2) {
            throw new RangeError('no reader');
          }
        },
      }),
    );
    await run({ run: (row) => loop.run(model, row) }, { name: 'a', steps: 3, marked: true });
    expect(await broken).toEqual(new RangeError('no reader'));
    expect(got).toEqual(['a0', 'a1', 'a2']);
  });

  it('[E8] Rows of several models never cost more than maxCost together, the oldest is never paused, none more than four times, and all end', async () => {
    const row = fc.record({
      steps: fc.integer({ min: 1, max: 37 }),
      size: fc.integer({ min: 0, max: 12 }),
      of: fc.nat({ max: 2 }),
    });
    await fc.assert(
      fc.asyncProperty(fc.array(row, { minLength: 2, maxLength: 24 }), async (rows) => {
        const maxCost = 50;
        got = [];
        const loop = new SequenceLoop({ ...NO_LIMITS, maxCost });
        const present = new Map<string, number>();
        const unended = new Set(rows.keys());
        const pauses = new Map<string, number>();
        const checked = [0, 1, 2].map(
          () =>
            new (class extends CountingModel {
              override step(...[states, context]: Parameters<CountingModel['step']>) {
                states.forEach(({ row: own, next }) => {
                  present.set(own.name, this.cost(own, next + 1));
                });
                const total = [...present.values()].reduce((sum, cost) => sum + cost, 0);
                expect(total).toBeLessThanOrEqual(maxCost);
                return super.step(states, context);
              }

              override end(state: Parameters<CountingModel['end']>[0], reason: SequenceEnd): void {
                const { name } = state.row;
                present.delete(name);
                if (reason === 'paused') {
                  pauses.set(name, (pauses.get(name) ?? 0) + 1);
                  expect(Number(name.slice(0, -1))).not.toBe(Math.min(...unended));
                } else {
                  unended.delete(Number(name.slice(0, -1)));
                }
                super.end(state, reason);
              }
            })(),
        );
        await Promise.all(
          rows.map(({ of, ...own }, i) =>
            loop.run(checked[of]!, {
              input: { name: `${i}.`, marked: true, ...own },
              isWaiting: () => true,
              emit: (value) => void got.push(value),
              hooks: [],
              hook: () => {},
            }),
          ),
        );
        expect(new Set(got).size).toBe(rows.reduce((sum, { steps }) => sum + steps, 0));
        expect(Math.max(0, ...pauses.values())).toBeLessThanOrEqual(4);
      }),
      { numRuns: 60 },
    );
  });
});

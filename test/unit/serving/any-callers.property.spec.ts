import { beforeEach, describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { createServing, isServingError, type LocalServing } from 'nestjs-serving';
import { formatValue } from '../../../lib/doors/text.js';
import { later, passTime, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { silenceLog } from '../../fixtures/silent-log.js';

/**
 * Random callers of servings that share batches: callers that write into the memory of a lazy input
 * again, rows whose function calls other servings or its own, and functions that throw, reject with or
 * return what is odd. Each call ends; its answer is that of its own rows, or an error for which its
 * own rows are the reason.
 */
describe('Any callers of servings', () => {
  useVirtualTime();
  beforeEach(() => silenceLog());

  it('[FR3] [FR7] [FR12] [H11] get their own answers or errors, and never wait for ever', async () => {
    await fc.assert(
      fc.asyncProperty(site, fc.array(call, { minLength: 1, maxLength: 12 }), async (...given) => {
        expect(await new Play(...given).run()).toEqual([]);
      }),
      { numRuns: process.env['SEED'] === undefined ? 100 : 1000 },
    );
  });
});

const throws = (): never => {
  throw new TypeError('a trap');
};
const traps = { get: throws, has: throws, getPrototypeOf: throws, ownKeys: throws };

function revoked(): object {
  const { proxy, revoke } = Proxy.revocable({}, {});
  revoke();
  return proxy;
}

/** What a function may throw or return. */
const ODDITIES: readonly unknown[] = [
  null,
  undefined,
  'a text',
  Symbol('odd'),
  Object.freeze(new Error('frozen')),
  Object.defineProperties(new Error('a'), { code: { get: throws }, message: { get: throws } }),
  {
    get message() {
      return throws();
    },
  },
  revoked(),
  new Proxy(new Error('a'), traps),
  Object.create(null),
  Object.assign(new Error('own cause'), {
    get cause() {
      return this;
    },
  }),
];

const NAMES = ['a', 'b', 'c'] as const;

const call = fc.record({
  to: fc.constantFrom(...NAMES),
  by: fc.constantFrom('batchedRun' as const, 'batchedRun' as const, 'run' as const),
  /** Rows in a lazy input that uses its memory again; 0 for a plain call. */
  lazy: fc.constantFrom(0, 0, 1, 3),
  /** What the function does with the first row. */
  does: fc.oneof(
    { weight: 3, arbitrary: fc.constant(undefined) },
    {
      weight: 2,
      arbitrary: fc.record({
        kind: fc.constantFrom('throws' as const, 'rejects' as const, 'returns' as const),
        odd: fc.nat({ max: ODDITIES.length - 1 }),
      }),
    },
    {
      weight: 4,
      arbitrary: fc.record({
        kind: fc.constant('calls' as const),
        path: fc.array(fc.constantFrom(...NAMES), { minLength: 1, maxLength: 3 }),
        by: fc.constantFrom('batchedRun' as const, 'run' as const),
        wait: fc.constantFrom(0, 1, 5),
      }),
    },
  ),
  pause: fc.constantFrom(0, 0, 0, 1, 10),
});

const site = fc.record({
  partitions: fc.integer({ min: 1, max: 2 }),
  batchSize: fc.integer({ min: 1, max: 4 }),
  batchTimeout: fc.constantFrom(0, 5),
  idempotent: fc.boolean(),
  order: fc.boolean(),
});

type Call = typeof call extends fc.Arbitrary<infer T> ? T : never;
type Does = Call['does'];

interface Row {
  n: number;
  /** Memory that a lazy input writes again. */
  readonly memory: Float32Array;
  readonly does: Does;
}

/** Milliseconds after which a call that has not ended never will. */
const PATIENCE = 1000;

class Play {
  private readonly faults: string[] = [];
  private readonly servings: Record<string, LocalServing> = {};
  private readonly open = new Set<string>();
  private n = 0;

  constructor(
    private readonly options: typeof site extends fc.Arbitrary<infer T> ? T : never,
    private readonly calls: readonly Call[],
  ) {}

  async run(): Promise<readonly string[]> {
    for (const name of NAMES) {
      await this.start(name);
    }
    for (const each of this.calls) {
      this.follow(each);
      await later(each.pause);
    }
    for (let ms = 0; ms < PATIENCE && this.open.size > 0; ms += 5) {
      await later(5);
    }
    this.faults.push(...[...this.open].map((what) => `${what} waits for ever`));
    if (this.open.size === 0) {
      await this.checkUsable();
    }
    await passTime(Promise.all(Object.values(this.servings).map((serving) => serving.close())));
    return this.faults;
  }

  private async start(name: string): Promise<void> {
    const { partitions, batchSize, batchTimeout, idempotent, order } = this.options;
    const serving = createServing({
      name,
      partitions,
      batchSize,
      batchTimeout,
      recovery: { idempotent },
      ...(order && { queue: { order: 'preserve' } }),
      model: { useFactory: () => (rows: readonly Row[]) => this.batch(name, rows) },
    });
    this.servings[name] = serving;
    await serving.start();
  }

  /** The answer of each row has all that the function has read of it. */
  private batch(name: string, rows: readonly Row[]): unknown[] {
    const thrower = rows.find(({ does }) => does?.kind === 'throws');
    if (thrower?.does?.kind === 'throws') {
      throw ODDITIES[thrower.does.odd];
    }
    return rows.map(async (row) => {
      const own = answerOf(name, row);
      const { does } = row;
      if (does?.kind === 'rejects') {
        throw ODDITIES[does.odd];
      }
      if (does?.kind === 'returns') {
        return ODDITIES[does.odd];
      }
      if (does?.kind !== 'calls') {
        return own;
      }
      const [to, ...path] = does.path;
      await new Promise((resolve) => setTimeout(resolve, does.wait));
      const next = path.length > 0 ? { ...does, path } : undefined;
      const inner = await this.servings[to!]![does.by]({
        n: row.n,
        memory: row.memory,
        does: next,
      });
      return `${own} ${String(inner)}`;
    });
  }

  private follow(each: Call): void {
    const rows = Math.max(each.lazy, 1);
    const first = this.n;
    this.n += rows;
    const what = `${JSON.stringify(each)} of row ${first}`;
    this.open.add(what);
    const expected = Array.from({ length: rows }, (_, i) => expectedOf(each, first + i));
    void this.replyTo(each, first)
      .then(
        (reply) => this.checkReply(each, reply, expected),
        (error: unknown) => this.checkError(each, error),
      )
      .finally(() => this.open.delete(what));
  }

  private async replyTo(each: Call, first: number): Promise<unknown> {
    const serving = this.servings[each.to]!;
    return each.lazy === 0
      ? [await serving[each.by](rowOf(first, each.does))]
      : serving.batchedRun(reused(first, each));
  }

  private checkReply(each: Call, reply: unknown, expected: readonly string[]): void {
    const { does } = each;
    const odd = does?.kind === 'returns' ? [ODDITIES[does.odd]] : undefined;
    const isRight =
      Array.isArray(reply) &&
      (odd ? reply.every((value) => odd.includes(value)) : reply.join('|') === expected.join('|'));
    if (!isRight) {
      this.faults.push(
        `${JSON.stringify(each)} got ${formatValue(reply)}, not ${expected.join('|')}`,
      );
    }
  }

  private checkError({ does, to }: Call, error: unknown): void {
    const code = isServingError(error) ? error.code : undefined;
    const hasThrower = this.calls.some((other) => other.does?.kind === 'throws');
    const isOwn = does?.kind === 'throws' || does?.kind === 'rejects' || does?.kind === 'returns';
    const isExplained =
      isOwn ||
      (does?.kind === 'calls' && code === 'SERVING_CALL_CYCLE') ||
      (!this.options.idempotent && hasThrower && code === 'SERVING_BATCH_FAILED');
    if (!isExplained) {
      this.faults.push(`a call of "${to}" that ${does?.kind ?? 'is plain'} failed with ${code}`);
    }
  }

  /** Later callers are answered. */
  private async checkUsable(): Promise<void> {
    for (const name of NAMES) {
      const row = rowOf(this.n++, undefined);
      const reply = await passTime(this.servings[name]!.batchedRun(row));
      if (reply !== answerOf(name, row)) {
        this.faults.push(`"${name}" answers ${formatValue(reply)} after the play`);
      }
    }
  }
}

const rowOf = (n: number, does: Does): Row => ({ n, memory: Float32Array.of(n), does });

/** The rows of a lazy input, all in the same memory. */
function* reused(first: number, { lazy, does }: Call): Generator<Row> {
  const row = { n: 0, memory: new Float32Array(1), does };
  for (let i = 0; i < lazy; i++) {
    row.n = first + i;
    row.memory[0] = first + i;
    yield row;
  }
  row.n = row.memory[0] = -1;
}

const answerOf = (name: string, { n, memory }: Row): string => `${name}:${n}:${memory[0]}`;

function expectedOf({ to, does }: Call, n: number): string {
  const path = does?.kind === 'calls' ? [to, ...does.path] : [to];
  return path.map((name) => `${name}:${n}:${n}`).join(' ');
}

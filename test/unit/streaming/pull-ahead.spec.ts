import { describe, expect, it } from '@jest/globals';
import { PullAhead, Pulls, type Started } from '../../../lib/core/streaming/pull-ahead.js';
import type { Source } from '../../../lib/core/streaming/source.js';
import { turn } from '../../fixtures/async/virtual-time.js';

class Work implements Started {
  failure: unknown;
  isOver = false;
  private ended: (() => void) | undefined;

  constructor(
    readonly name: string,
    readonly size: number,
    readonly cost: number,
  ) {}

  fail(error: unknown): void {
    this.failure ??= error;
  }

  onEnd(callback: () => void): void {
    this.ended = callback;
  }

  end(): void {
    this.isOver = true;
    this.ended?.();
  }
}

/** Pulls numbers, each the size and the cost of its piece, and records the started pieces. */
function pullFrom(
  source: Source<number>,
  window: number,
  mostCost = Infinity,
  onDone?: () => void,
) {
  const started: Work[] = [];
  const pulled = new PullAhead({
    source,
    window,
    isOpen: true,
    mostCost,
    onDone,
    costOf: (size: number) => size,
    start: (size: number, cost: number) => {
      if (size < 0) {
        throw new RangeError(`${size} is no size`);
      }
      const work = new Work(`work ${started.length}`, size, cost);
      started.push(work);
      return work;
    },
  });
  return { pulled, started };
}

/** Yields the numbers and records how it was closed. */
class Numbers implements Iterator<number> {
  given = 0;
  returns = 0;

  constructor(private readonly numbers: readonly (number | Error)[]) {}

  next(): IteratorResult<number, undefined> {
    const value = this.numbers[this.given++];
    if (value instanceof Error) {
      throw value;
    }
    return value === undefined ? { done: true, value } : { done: false, value };
  }

  return(): IteratorResult<number, undefined> {
    this.returns++;
    return { done: true, value: undefined };
  }
}

const ones = (count: number): Numbers => new Numbers(Array.from({ length: count }, () => 1));

describe('PullAhead', () => {
  it('[L4] A pull reports that only reading is left when its source and all its pieces have ended', async () => {
    const reports: number[] = [];
    const { pulled, started } = pullFrom([1, 1].values(), 9, Infinity, () =>
      reports.push(started.filter(({ isOver }) => isOver).length),
    );
    const first = pulled.next();
    await turn();
    started[1]!.end();
    expect(reports).toEqual([]);

    started[0]!.end();
    expect(reports).toEqual([2]);
    expect(await first).toEqual({ done: false, value: started[0] });
  });

  it('[L4] A pull whose source is left reports that only reading is left once its pieces have ended', async () => {
    let reports = 0;
    const { pulled, started } = pullFrom(new Numbers([1, 1, 1]), 2, Infinity, () => reports++);
    void pulled.next();
    await turn();
    pulled.finish(new Error('closed'));
    expect(reports).toBe(0);

    started.forEach((work) => work.end());
    expect(reports).toBeGreaterThan(0);
  });

  it('[8.1] Nothing is pulled before the consumer asks', async () => {
    const source = ones(3);
    pullFrom(source, 2);

    await turn();

    expect(source.given).toBe(0);
  });

  it('[8.1] Pulling stops at the size of the window until the consumer takes a piece', async () => {
    const { pulled, started } = pullFrom(ones(10), 3);

    const first = await pulled.next();
    await turn();
    expect(started).toHaveLength(3);
    await turn();
    expect(started).toHaveLength(3);
    const second = await pulled.next();
    await turn();

    expect(started).toHaveLength(4);
    expect([first.value, second.value]).toEqual(started.slice(0, 2));
  });

  it('[8.1] The window counts the size of each piece, so that few large pieces are ahead', async () => {
    const { pulled, started } = pullFrom(new Numbers([4, 4, 4, 1, 1, 1, 1, 1]), 6);

    await pulled.next();
    await turn();
    expect(started.map(({ size }) => size)).toEqual([4, 4]);
    for (let asked = 0; asked < 3; asked++) {
      await pulled.next();
    }
    await turn();

    expect(started.map(({ size }) => size)).toEqual([4, 4, 4, 1, 1, 1, 1, 1]);
  });

  it('[8.1] [7.1] Pulling stops at the cost limit, and a piece above the limit starts alone', async () => {
    const { pulled, started } = pullFrom(new Numbers([2, 2, 3, 9, 1, 1]), 100, 5);
    const sizes = async (): Promise<number[]> => {
      await pulled.next();
      await turn();
      return started.map(({ size }) => size);
    };

    expect(await sizes()).toEqual([2, 2]);
    expect(await sizes()).toEqual([2, 2, 3]);
    expect(await sizes()).toEqual([2, 2, 3]);
    expect(await sizes()).toEqual([2, 2, 3, 9]);
    expect(await sizes()).toEqual([2, 2, 3, 9, 1, 1]);
  });

  it('[8.2] [7.1] A piece that exceeded the cost limit does not start after stopping', async () => {
    const source = ones(10);
    const { pulled, started } = pullFrom(source, 100, 2);
    await pulled.next();
    await turn();
    expect([started.length, source.given]).toEqual([2, 3]);

    pulled.stop();
    await turn();

    expect([started.length, source.given, source.returns]).toEqual([2, 3, 1]);
  });

  it('[8.1] Pieces arrive in order until the end, which is reported to every further request', async () => {
    const { pulled, started } = pullFrom(ones(4), 2);
    const asked: unknown[] = [];

    while (asked.length < 6) {
      asked.push((await pulled.next()).value);
    }

    expect(asked).toEqual([...started, undefined, undefined]);
    expect(started).toHaveLength(4);
  });

  it('[8.1] Pieces that started before the source failed arrive before its error', async () => {
    const error = new Error('the file is broken');
    const source = new Numbers([1, error, 1]);
    const { pulled, started } = pullFrom(source, 5);

    expect((await pulled.next()).value).toBe(started[0]);
    await expect(pulled.next()).rejects.toBe(error);
    await turn();

    expect(started).toHaveLength(1);
    expect(source).toMatchObject({ given: 2, returns: 1 });
  });

  it('[8.1] The source is closed when one of its values cannot be started', async () => {
    const source = new Numbers([1, -1, 1]);
    const { pulled, started } = pullFrom(source, 5);

    expect((await pulled.next()).value).toBe(started[0]);
    await expect(pulled.next()).rejects.toThrow('-1 is no size');

    expect(source).toMatchObject({ given: 2, returns: 1 });
  });

  it('[8.2] Stopping ends the pieces in progress, closes the source once and starts nothing more', async () => {
    const source = ones(10);
    const { pulled, started } = pullFrom(source, 3);
    const error = new Error('left');
    await pulled.next();
    await pulled.next();
    await turn();

    pulled.stop({ error });
    pulled.stop({ error: new Error('again') });
    await turn();

    expect(started).toHaveLength(4);
    expect(started.map(({ failure }) => failure)).toEqual([undefined, error, error, error]);
    expect(source.returns).toBe(1);
  });

  it('[8.2] A source that has ended is not closed', async () => {
    const source = ones(1);
    const { pulled } = pullFrom(source, 3);
    await pulled.next();
    await pulled.next();

    pulled.stop({ error: new Error('left') });

    expect(source.returns).toBe(0);
  });

  it('[8.2] Stopping does not wait for a source that is being read', async () => {
    let give!: (result: IteratorResult<number>) => void;
    let returns = 0;
    const { pulled, started } = pullFrom(
      {
        next: () => new Promise<IteratorResult<number>>((resolve) => (give = resolve)),
        return: () => {
          returns++;
          return new Promise(() => {});
        },
      },
      3,
    );
    const asked = pulled.next();

    pulled.stop();

    expect(await asked).toEqual({ done: true, value: undefined });
    give({ done: false, value: 1 });
    await turn();
    expect([started.length, returns]).toEqual([0, 1]);
  });

  it('[8.2] The error of stopping reaches a consumer that waits for the next piece', async () => {
    const { pulled } = pullFrom({ next: () => new Promise<never>(() => {}) }, 1);
    const asked = pulled.next();

    pulled.stop({ error: new Error('aborted') });

    await expect(asked).rejects.toThrow('aborted');
  });

  it('[8.2] An error of a source that was closed is ignored', async () => {
    let fail!: (error: unknown) => void;
    let returns = 0;
    const { pulled } = pullFrom(
      {
        next: () => new Promise((_, reject) => (fail = reject)),
        return: async () => {
          returns++;
          return { done: true, value: undefined };
        },
      },
      3,
    );
    const asked = pulled.next();
    pulled.stop();

    fail(new Error('closed'));
    await turn();

    expect(await asked).toEqual({ done: true, value: undefined });
    expect(returns).toBe(1);
  });
});

describe('A pull that waits for cost', () => {
  it('[FR14] ends, and starts nothing, when its stream is stopped', async () => {
    let started = 0;
    const pulled = new PullAhead<number, Started>({
      source: [6, 6].values(),
      window: 10,
      isOpen: false,
      costOf: (cost) => cost,
      mostCost: 10,
      start: (_, cost) => {
        started++;
        return { size: 1, cost, isOver: false, fail() {}, onEnd() {} };
      },
    });
    await pulled.next();
    expect([started, pulled['isPulling']]).toEqual([1, true]);

    pulled.stop();
    await turn();

    expect([started, pulled['isPulling']]).toEqual([1, false]);
  });
});

const piece = { size: 1, cost: 0, isOver: true, fail: () => {}, onEnd: () => {} };

/** A call whose source yields this many pieces, at most two of which are in progress. */
function begun(pulls: Pulls, pieces: number, start = () => piece) {
  const source = Array.from({ length: pieces }, () => 1).values();
  return pulls.begin({
    source,
    window: 2,
    isOpen: false,
    mostCost: Infinity,
    costOf: () => 0,
    start,
  });
}

describe('The pulls of a serving that closes', () => {
  it('[L4] Closing does not wait for the reader of a stream whose work has ended', async () => {
    const pulls = new Pulls();
    await pulls.readerOf(begun(pulls, 1), () => {}).next();
    await turn();

    await expect(pulls.close(new Error('closed'))).resolves.toBeUndefined();
  });

  it.each([
    ['has pieces that were not started', 3, () => piece],
    ['has a piece that runs', 1, () => ({ ...piece, isOver: false })],
  ])('[L4] Closing waits for the reader of a stream that %s', async (_, pieces, start) => {
    const pulls = new Pulls();
    const pulled = begun(pulls, pieces, start);
    await pulled.next();
    await turn();
    let isClosed = false;

    const closed = pulls.close(new Error('closed')).then(() => (isClosed = true));
    await turn();
    expect(isClosed).toBe(false);
    pulls.end(pulled);

    await closed;
  });
});

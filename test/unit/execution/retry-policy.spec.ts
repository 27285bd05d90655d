import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import {
  Batch,
  BatchFailedError,
  PartitionLostError,
  RunTimeoutError,
  ServingLoadError,
} from 'nestjs-serving';
import type { Part } from '../../../lib/core/batching/queued-request.js';
import {
  LostInTransitError,
  NotStartedError,
  OutputLostError,
  TooLargeToSendError,
} from '../../../lib/core/partitions/partition.js';
import { type RetryState, retriesFor } from '../../../lib/core/execution/retry-policy.js';
import { type BatchRequest, ReplyRequest } from '../../../lib/core/execution/request.js';
import { StreamRequest } from '../../../lib/core/execution/stream-request.js';
import type { RetryOptions } from '../../../lib/core/definition/resolved-serving.js';

const options: RetryOptions = { idempotent: true, isolateFailures: true, retries: 2 };
const limits = { batchSize: 1024, batchTimeout: 0, runSize: 1024 };
const lane = { limits, key: 'default', origin: undefined };
const failed = new BatchFailedError('one of the rows is at fault');
const lost = new PartitionLostError('the process has ended');

function requestOf(rows: number, whole = false): BatchRequest {
  const batch = Batch.stack(Array.from({ length: rows }, (_, i) => i));
  return whole
    ? new StreamRequest(batch, lane, undefined, ['hook'])
    : new ReplyRequest(batch, lane);
}

const allOf = (request: BatchRequest): Part<BatchRequest> => ({
  request,
  offset: 0,
  count: request.size,
});
const partsOf = (...sizes: number[]): Part<BatchRequest>[] =>
  sizes.map((size) => allOf(requestOf(size)));
/** The offset and the count of each part of each retry. */
const shapeOf = (retries: ReturnType<typeof retriesFor>): number[][][] =>
  retries.map(({ parts }) => parts.map(({ offset, count }) => [offset, count]));

/** The outcome of the rows, some of which are faulty, and the number of runs. */
function play(
  parts: readonly Part<BatchRequest>[],
  errorOf: (rows: readonly (readonly [BatchRequest, number])[]) => unknown,
  own: Partial<RetryOptions> = {},
): { readonly runs: number; readonly failed: number; readonly answered: number } {
  const left: { readonly parts: readonly Part<BatchRequest>[]; readonly retryState?: unknown }[] = [
    { parts },
  ];
  const outcome = { runs: 0, failed: 0, answered: 0 };
  for (let batch = left.shift(); batch; batch = left.shift()) {
    outcome.runs++;
    const rows = batch.parts.flatMap(({ request, offset, count }) =>
      Array.from({ length: count }, (_, i) => [request, offset + i] as const),
    );
    const error = errorOf(rows);
    const retries =
      error === undefined
        ? []
        : retriesFor(error, batch.parts, batch.retryState as RetryState, { ...options, ...own });
    left.push(...retries);
    if (retries.length === 0) {
      outcome[error === undefined ? 'answered' : 'failed'] += rows.length;
    }
  }
  return outcome;
}

/** Fails every batch with one of these rows, counted over all parts. */
function atFault(parts: readonly Part<BatchRequest>[], faulty: readonly number[]) {
  const all = parts.flatMap(({ request, count }) =>
    Array.from({ length: count }, (_, i) => [request, i] as const),
  );
  return (rows: readonly (readonly [BatchRequest, number])[]): unknown =>
    rows.some(([request, index]) =>
      faulty.some((i) => all[i]![0] === request && all[i]![1] === index),
    )
      ? failed
      : undefined;
}

describe('retriesFor', () => {
  it('[6.4] A failed batch is halved in the order of its rows, also within a request', () => {
    expect(shapeOf(retriesFor(failed, partsOf(2, 3, 1), undefined, options))).toEqual([
      [
        [0, 2],
        [0, 1],
      ],
      [
        [1, 2],
        [0, 1],
      ],
    ]);
    expect(
      shapeOf(retriesFor(failed, [{ ...partsOf(9)[0]!, offset: 4, count: 3 }], undefined, options)),
    ).toEqual([[[4, 2]], [[6, 1]]]);
  });

  it('[6.4] A row that failed alone is not retried', () => {
    expect(retriesFor(failed, partsOf(1), undefined, options)).toEqual([]);
  });

  it.each([{ idempotent: false, isolateFailures: false }, { isolateFailures: false }])(
    '[6.4] A failed batch is not retried with the options %j',
    (own) => {
      expect(retriesFor(failed, partsOf(4), undefined, { ...options, ...own })).toEqual([]);
    },
  );

  it('[6.4] A batch that failed because something could not be loaded is not retried, since no row is at fault', () => {
    expect(
      retriesFor(new ServingLoadError('no such file'), partsOf(4), undefined, options),
    ).toEqual([]);
  });

  it('[6.4] Halving finds one or two faulty rows anywhere and answers all others', () => {
    fc.assert(
      fc.property(
        fc.array(fc.integer({ min: 1, max: 40 }), { minLength: 1, maxLength: 12 }),
        fc.nat(),
        fc.nat(),
        (sizes, first, second) => {
          const parts = partsOf(...sizes);
          const rows = sizes.reduce((sum, size) => sum + size, 0);
          const faulty = [...new Set([first % rows, second % rows])];

          const { answered, failed: without } = play(parts, atFault(parts, faulty));

          expect([answered, without]).toEqual([rows - faulty.length, faulty.length]);
        },
      ),
    );
  });

  it.each([2, 3, 32, 100, 1000])(
    '[6.4] Halving ends in few runs when all of %s rows are faulty',
    (rows) => {
      const parts = partsOf(rows);

      const { runs, failed: without, answered } = play(parts, () => failed);

      expect([without, answered]).toEqual([rows, 0]);
      expect(runs).toBeLessThanOrEqual(1 + 4 * Math.ceil(Math.log2(rows)));
    },
  );

  it('[6.4] Halving ends in few runs and answers every row once, for any number of faulty rows', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 200 }),
        fc.array(fc.nat(199), { maxLength: 200 }),
        (rows, faulty) => {
          const parts = partsOf(rows);

          const outcome = play(
            parts,
            atFault(
              parts,
              faulty.filter((row) => row < rows),
            ),
          );

          expect(outcome.answered + outcome.failed).toBe(rows);
          expect(outcome.runs).toBeLessThanOrEqual(1 + 4 * Math.ceil(Math.log2(rows)));
        },
      ),
    );
  });

  it('[8.3] [6.4] Halving splits no whole request, and separates it from other requests', () => {
    const [before, whole, after] = [
      allOf(requestOf(1)),
      allOf(requestOf(3, true)),
      allOf(requestOf(2)),
    ];

    expect(
      retriesFor(failed, [before, whole], undefined, options).map(({ parts }) => parts),
    ).toEqual([[before], [whole]]);
    expect(
      retriesFor(failed, [whole, before], undefined, options).map(({ parts }) => parts),
    ).toEqual([[whole], [before]]);
    expect(
      retriesFor(failed, [before, whole, after], undefined, options).map(({ parts }) => parts),
    ).toEqual([[before, whole], [after]]);
    expect(retriesFor(failed, [whole], undefined, options)).toEqual([]);
  });

  it('[8.3] [6.4] Halving finds the faulty request among whole requests', () => {
    const aCall = fc.record({ rows: fc.integer({ min: 1, max: 8 }), whole: fc.boolean() });
    fc.assert(
      fc.property(fc.array(aCall, { minLength: 1, maxLength: 8 }), fc.nat(), (calls, index) => {
        const requests = calls.map(({ rows, whole }) => requestOf(rows, whole));
        const culprit = requests[index % requests.length]!;

        const { failed: without } = play(requests.map(allOf), (rows) => {
          expect(
            requests
              .filter(({ whole }) => whole)
              .every((request) =>
                [0, request.size].includes(rows.filter(([own]) => own === request).length),
              ),
          ).toBe(true);
          return rows.some(([request, row]) => request === culprit && row === 0)
            ? failed
            : undefined;
        });

        expect(without).toBe(culprit.whole ? culprit.size : 1);
      }),
    );
  });

  it.each([lost, new RunTimeoutError('too long')])(
    '[5.6] A batch is retried whole after its first $name, and in halves after the second',
    (error) => {
      const parts = partsOf(3, 1);
      const [first] = retriesFor(error, parts, undefined, options);
      expect(first?.parts).toEqual(parts);

      const halves = retriesFor(error, parts, first?.retryState as RetryState, options);
      expect(shapeOf(halves)).toEqual([
        [[0, 2]],
        [
          [2, 1],
          [0, 1],
        ],
      ]);

      expect(
        halves.map(({ parts: half, retryState }) =>
          retriesFor(error, half, retryState as RetryState, options),
        ),
      ).toEqual([[], []]);
    },
  );

  it.each([0, 1, 2, 5])(
    '[5.6] A lost batch is retried %s times with that number of retries',
    (retries) => {
      const parts = partsOf(64);

      const { runs, failed: without } = play(parts, () => lost, { retries });

      // Whole, whole again, and then in halves, each with its own count of losses.
      const halvings = Math.max(0, retries - 1);
      expect(runs).toBe(1 + (retries > 0 ? 1 : 0) + 2 ** (halvings + 1) - 2);
      expect(without).toBe(64);
    },
  );

  it('[5.6] Enough retries find the row that ends every partition', () => {
    const parts = partsOf(5, 11);

    const deadly = atFault(parts, [7]);
    const { answered, failed: without } = play(parts, (rows) => deadly(rows) && lost, {
      retries: 6,
    });

    expect([answered, without]).toEqual([15, 1]);
  });

  it('[5.6] A single row whose partition was lost is retried', () => {
    const parts = partsOf(1);
    const [first] = retriesFor(lost, parts, undefined, options);
    expect(first?.parts).toEqual(parts);

    expect(
      retriesFor(lost, parts, first?.retryState as RetryState, options).map((retry) => retry.parts),
    ).toEqual([parts]);
  });

  it('[5.6] A lost batch is not retried without idempotence or without retries', () => {
    expect(
      retriesFor(lost, partsOf(4), undefined, {
        ...options,
        idempotent: false,
        isolateFailures: false,
      }),
    ).toEqual([]);
    expect(retriesFor(lost, partsOf(4), undefined, { ...options, retries: 0 })).toEqual([]);
  });

  it('[5.6] A lost batch is retried also when failures are not isolated', () => {
    expect(
      retriesFor(lost, partsOf(4), undefined, { ...options, isolateFailures: false }),
    ).toHaveLength(1);
  });

  it.each([true, false])(
    '[H7] A batch that may have ended its partition while being sent is retried as often as the retries allow: idempotent %p',
    (idempotent) => {
      const outcome = play(partsOf(1, 1), () => new LostInTransitError('gone'), {
        idempotent,
        isolateFailures: idempotent,
      });

      expect(outcome).toEqual({ runs: 4, failed: 2, answered: 0 });
    },
  );

  it('[H7] A batch too large to send is halved down to the row that is too large, with any options', () => {
    const parts = partsOf(3, 5);
    const large = allOf(parts[1]!.request).request;
    const tooLarge = (rows: readonly (readonly [BatchRequest, number])[]): unknown =>
      rows.length > 4 || rows.some(([request, row]) => request === large && row === 4)
        ? new TooLargeToSendError('large')
        : undefined;

    const outcome = play(parts, tooLarge, {
      idempotent: false,
      isolateFailures: false,
      retries: 0,
    });

    expect(outcome).toMatchObject({ failed: 1, answered: 7 });
  });

  it('[5.6] A batch that had not begun is retried whole and without limit, also when it is not idempotent', () => {
    const parts = partsOf(3, 2);
    const careful = { idempotent: false, isolateFailures: false, retries: 0 };
    let retryState: RetryState | undefined;

    for (let i = 0; i < 20; i++) {
      const [retry, ...others] = retriesFor(
        new NotStartedError('gone'),
        parts,
        retryState,
        careful,
      );
      expect([retry?.parts, others]).toEqual([parts, []]);
      retryState = retry?.retryState as RetryState;
    }

    expect(retriesFor(lost, parts, retryState, careful)).toEqual([]);
    expect(retriesFor(lost, parts, retryState, options)).toHaveLength(1);
  });

  it('[5.6] A batch whose output was lost after it ended is retried whole and without limit when it is idempotent', () => {
    const parts = partsOf(2, 3);
    const error = new OutputLostError('gone');
    let retryState: RetryState | undefined;

    for (let i = 0; i < 20; i++) {
      const [retry, ...others] = retriesFor(error, parts, retryState, { ...options, retries: 1 });
      expect([retry?.parts, others]).toEqual([parts, []]);
      retryState = retry?.retryState as RetryState;
    }

    expect(retriesFor(lost, parts, retryState, { ...options, retries: 1 })).toHaveLength(1);
    expect(retriesFor(error, parts, undefined, { ...options, idempotent: false })).toEqual([]);
  });

  it.each([
    'CUDA error: out of memory',
    'std::bad_alloc',
    'Failed to allocate memory for requested buffer',
    'JavaScript heap Out Of Memory',
  ])(
    '[5.6] A batch that ran out of memory is halved, also when failures are not isolated: %s',
    (message) => {
      const own = { ...options, isolateFailures: false };
      const error = new BatchFailedError(`Serving "large": a batch of 4 rows failed: ${message}`);

      expect(shapeOf(retriesFor(error, partsOf(4), undefined, own))).toEqual([[[0, 2]], [[2, 2]]]);
      expect(retriesFor(error, partsOf(4), undefined, { ...own, idempotent: false })).toEqual([]);
      expect(retriesFor(error, partsOf(1), undefined, own)).toEqual([]);
    },
  );

  it('[5.6] [6.4] All rows of a batch that ran out of memory are answered when smaller batches fit', () => {
    const parts = partsOf(20, 44);
    const error = new BatchFailedError('out of memory');

    const { answered } = play(parts, (rows) => (rows.length > 32 ? error : undefined), {
      isolateFailures: false,
    });

    expect(answered).toBe(64);
  });
});

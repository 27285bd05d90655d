import { setImmediate, setTimeout } from 'node:timers/promises';
import { Batch, createServing } from 'nestjs-serving';
import type { Ledger } from '../ledger.js';
import { Random } from '../random.js';
import { answerTo, faultOf, idOf, KEYS, RowError } from '../rows.js';
import type { Subject } from '../subject.js';

export type RowsFunction = (rows: readonly number[]) => Promise<unknown[]>;

export interface FunctionOptions {
  readonly name: string;
  readonly share: number;
  readonly idempotent: boolean;
  readonly batchTimeout: number;
  /** What is done to the batch function, by who wants to see the soak fail. */
  readonly sabotage?: (run: RowsFunction) => RowsFunction;
}

/**
 * A function of the application's own thread: most batches end at once, some later, so that
 * partitions overtake one another.
 */
export async function functionSubject(ledger: Ledger, options: FunctionOptions): Promise<Subject> {
  const { name, share, idempotent, batchTimeout, sabotage = (run) => run } = options;
  const random = new Random(1);
  const serving = createServing({
    name,
    model: {
      useFactory:
        ({ key }) =>
        (rows: number[]) =>
          sabotage(async (given) => {
            if (random.chance(0.1)) {
              await (random.chance(0.5) ? setImmediate() : setTimeout(1));
            }
            given.forEach((row) => ledger.ran(idOf(row), !idempotent));
            return given.map((row) => resultOf(row, key));
          })(rows),
    },
    recovery: { idempotent },
    batchSize: 64,
    batchTimeout,
    batchKeys: [...KEYS],
    partitions: 3,
    queue: {
      maxRows: 4000,
      maxCost: 4000,
      cost: ({ size }) => size,
      priorityAgeing: 20,
      tenantWeights: { 'tenant 1': 3 },
    },
  });
  await serving.start();
  return {
    name,
    serving,
    share,
    keys: KEYS,
    faults: ['throws', 'error'],
    isolates: idempotent,
    tellsRuns: true,
    input: (rows, key) => Batch.stack(rows).withKey(key),
    wrong: (output, rows, key) =>
      Array.isArray(output) && output.length === rows.length
        ? rows.filter((row, index) => output[index] !== answerTo(row, key)).length
        : rows.length,
  };
}

function resultOf(row: number, key: string): number | RowError {
  const fault = faultOf(row);
  if (fault === 'throws') {
    throw new Error(`row ${idOf(row)} throws`);
  }
  return fault === 'error' ? new RowError(row) : answerTo(row, key);
}

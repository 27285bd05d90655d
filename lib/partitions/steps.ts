import { setImmediate as endOfTurn } from 'node:timers/promises';
import { type BatchListener, type BatchResult, STEPPED, WithMetadata } from './partition.js';
import { settledRows } from './settled-rows.js';

type Steps = AsyncGenerator | Generator;

/** The result of a batch function; of a generator once it has ended, or nobody waits for it any more. */
export async function resultOf(
  returned: unknown,
  size: number,
  listener: BatchListener,
): Promise<BatchResult<unknown> | typeof STEPPED> {
  const result = await returned;
  return isGenerator(result) ? runSteps(result, size, listener) : settledResult(withoutMark(result));
}

async function runSteps(steps: Steps, size: number, listener: BatchListener): Promise<typeof STEPPED> {
  for await (const step of steps) {
    const { output, metadata } = withoutMark(step);
    listener.step(await settledRows(output), metadata);
    // A caller that leaves is heard of between two steps, also in a worker.
    await endOfTurn();
    await listener.room?.();
    if (!isWanted(size, listener)) {
      break;
    }
  }
  return STEPPED;
}

/** The result with the values of the promises in its list. */
export function settledResult<Result extends BatchResult<unknown>>(result: Result): Result | Promise<Result> {
  const output = settledRows(result.output);
  return output instanceof Promise ? output.then((rows: unknown) => ({ ...result, output: rows })) : result;
}

function isWanted(size: number, listener: BatchListener): boolean {
  for (let row = 0; row < size; row++) {
    if (listener.isWaiting(row)) {
      return true;
    }
  }
  return false;
}

function isGenerator(value: unknown): value is Steps {
  const tag = Object.prototype.toString.call(value);
  return tag === '[object AsyncGenerator]' || tag === '[object Generator]';
}

function withoutMark(result: unknown): BatchResult<unknown> {
  return result instanceof WithMetadata ? (result as BatchResult<unknown>) : { output: result };
}

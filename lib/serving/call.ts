import { Batch } from '../batch/batch.js';
import { isContainer } from '../batch/container.js';
import type { BatchAxes } from '../batch/template.js';
import { InvalidServingError } from '../errors.js';
import type { BatchResult } from '../partitions/partition.js';
import type { PostprocessContext, Prepared, ServingOptions } from './serving-definition.js';

/** The caller's half of the line: `preprocess` before the batch, `postprocess` after it. */
export type Callbacks = Pick<ServingOptions, 'name' | 'preprocess' | 'postprocess'>;

/** A call after preprocessing: its rows, and what the reply needs. */
export interface Call {
  readonly batch: Batch;
  /** The input was one plain value, so the reply is its one result. */
  readonly single: boolean;
  readonly info: unknown;
}

/** Turns the input into rows. `axes` tells where the rows of a model's inputs lie. */
export async function prepareCall(callbacks: Callbacks, input: unknown, axes?: BatchAxes): Promise<Call> {
  if (!callbacks.preprocess) {
    return { ...rowsOf(input, axes), info: undefined };
  }
  const prepared: Prepared | undefined = await callbacks.preprocess(input);
  if (typeof prepared !== 'object' || prepared === null || !('batch' in prepared)) {
    throw new InvalidServingError(
      `Serving "${callbacks.name}": preprocess must return { batch, info? }, it returned ${String(prepared)}`,
    );
  }
  return { ...rowsOf(prepared.batch, axes), info: prepared.info };
}

/** Shapes the reply from the output for the call's rows. */
export async function finishCall(callbacks: Callbacks, { single, info }: Call, result: BatchResult): Promise<unknown> {
  const output = single && Array.isArray(result.output) ? (result.output[0] as unknown) : result.output;
  const context: PostprocessContext = { metadata: result.metadata, info };
  return callbacks.postprocess ? callbacks.postprocess(output, context) : output;
}

function rowsOf(rows: unknown, axes?: BatchAxes): { batch: Batch; single: boolean } {
  if (rows instanceof Batch) {
    return { batch: rows, single: false };
  }
  if (isContainer(rows)) {
    return { batch: Batch.concatenate([rows], axes), single: false };
  }
  return { batch: Batch.stack([rows]), single: true };
}

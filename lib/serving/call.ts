import { Batch } from '../batch/batch.js';
import { isContainer } from '../batch/container.js';
import type { BatchAxes } from '../batch/template.js';
import { InvalidServingError } from '../errors.js';
import type { BatchResult } from '../partitions/partition.js';
import { show } from '../show.js';
import type { Prepared, ServingOptions } from './serving-definition.js';

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
export function prepareCall(callbacks: Callbacks, input: unknown, axes?: BatchAxes): Call | Promise<Call> {
  return callbacks.preprocess ? preprocess(callbacks, input, axes) : callOf(input, undefined, axes);
}

/** Shapes the reply from the output for the call's rows. */
export function finishCall(callbacks: Callbacks, { single, info }: Call, { output, metadata }: BatchResult): unknown {
  const result = single && Array.isArray(output) ? (output[0] as unknown) : output;
  return callbacks.postprocess ? callbacks.postprocess(result, { metadata, info }) : result;
}

async function preprocess(callbacks: Callbacks, input: unknown, axes?: BatchAxes): Promise<Call> {
  const prepared: Prepared | undefined = await callbacks.preprocess!(input);
  if (typeof prepared !== 'object' || prepared === null || !('batch' in prepared)) {
    throw new InvalidServingError(
      `Serving "${callbacks.name}": preprocess must return { batch, info? }, it returned ${show(prepared)}`,
    );
  }
  return callOf(prepared.batch, prepared.info, axes);
}

function callOf(rows: unknown, info: unknown, axes?: BatchAxes): Call {
  if (rows instanceof Batch) {
    return { batch: rows, single: false, info };
  }
  if (isContainer(rows)) {
    return { batch: Batch.concatenate([rows], axes), single: false, info };
  }
  return { batch: Batch.ofValues([rows]), single: true, info };
}

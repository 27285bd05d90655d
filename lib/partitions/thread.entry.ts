import { parentPort, workerData } from 'node:worker_threads';
import { InvalidServingError, toWire } from '../errors.js';
import { Queue } from '../streaming/queue.js';
import { BatchFunctions } from './batch-functions.js';
import { openModel } from './onnx-model.js';
import { type BatchFunctionFactory, type BatchListener, endedRows, STEPPED } from './partition.js';
import { readableRows } from './readable-rows.js';
import type { ThreadOpening, ThreadReply, ThreadRequest, ThreadResult, ThreadSaying, ThreadTask } from './thread-protocol.js';
import { pack, unpack } from './wire.js';

type Waiting = Extract<ThreadRequest, { readonly rows: unknown }> | { readonly unreadable: unknown };

const port = parentPort!;
const task = workerData as ThreadTask;
const requests = new Queue<Waiting>();
/** Counts the batches, as the other side does. */
let batch = -1;
/** The rows of the batch that nobody waits for. */
let over = new Set<number>();

// Listening before anything is awaited, so that no batch is missed.
port.on('message', (request: ThreadRequest) => {
  if (request === null) {
    requests.end();
  } else if ('rows' in request) {
    requests.push(request);
  } else if (request.batch === batch) {
    request.over.forEach((row) => over.add(row));
  }
});
// Of all that is sent here only rows can be anything.
port.on('messageerror', (unreadable) => requests.push({ unreadable }));
const opened = await open();

if (opened) {
  // One batch after the other: a batch that was handed ahead waits in the queue.
  for await (const request of requests) {
    batch++;
    over = new Set();
    post(...(await answer(opened, request)));
  }
}
// Ends the thread also where the module left a timer or a connection open; no native run is under way here.
process.exit();

async function answer(functions: BatchFunctions, request: Waiting): Promise<[ThreadResult, ArrayBuffer[]?]> {
  if ('unreadable' in request) {
    return [{ error: toWire(request.unreadable) }];
  }
  const { rows, info } = request;
  const plainRows = 'list' in rows;
  try {
    const result = await functions.run(unpack(rows), info, listener(info.hooks, plainRows));
    if (result === STEPPED) {
      return [{ stepped: true }];
    }
    const [output, transfer] = pack(readableRows(result.output), plainRows);
    const reply: ThreadResult = { output, metadata: result.metadata };
    return [reply, transfer];
  } catch (error) {
    return [{ error: toWire(error) }];
  }
}

function listener(hooks: readonly string[], plainRows: boolean): BatchListener {
  return {
    hooks,
    // What is said before the end is copied, since the function may go on with it.
    hook(name, value) {
      post({ hook: name, value: pack(readableRows(value), plainRows)[0] });
    },
    step(output, metadata) {
      post({ step: pack(readableRows(output), true)[0], metadata });
      endedRows(output).forEach((row) => over.add(row));
    },
    isWaiting: (row) => !over.has(row),
  };
}

function post(reply: ThreadSaying, transfer: ArrayBuffer[] = []): void {
  try {
    port.postMessage({ ...reply, batch } satisfies ThreadReply, transfer);
  } catch (error) {
    // It cannot be cloned; where it is the end of a batch, that is how the batch ends.
    if ('hook' in reply || 'step' in reply) {
      throw error;
    }
    port.postMessage({ error: toWire(error), batch } satisfies ThreadReply);
  }
}

async function open(): Promise<BatchFunctions | undefined> {
  try {
    const [factory, signature] = 'model' in task ? await openModel(task) : [await importFactory(task.file), undefined];
    const functions = new BatchFunctions(factory, task.partition, task.options);
    for (const key of task.keys) {
      await functions.get(key);
    }
    port.postMessage({ ...(signature && { signature }) } satisfies ThreadOpening);
    return functions;
  } catch (error) {
    port.postMessage({ error: toWire(error) } satisfies ThreadOpening);
    return undefined;
  }
}

async function importFactory(file: string): Promise<BatchFunctionFactory<unknown>> {
  const { default: factory } = (await import(file)) as { default?: unknown };
  if (typeof factory !== 'function') {
    throw new InvalidServingError(
      `${file} must export as its default a function that returns the batch function, it exports ${typeof factory}`,
    );
  }
  return factory as BatchFunctionFactory<unknown>;
}

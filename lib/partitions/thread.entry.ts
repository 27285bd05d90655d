import { on } from 'node:events';
import { parentPort, workerData } from 'node:worker_threads';
import { InvalidServingError, toWire } from '../errors.js';
import { BatchFunctions } from './batch-functions.js';
import { openModel } from './onnx-model.js';
import type { BatchFunctionFactory } from './partition.js';
import type { ThreadOpening, ThreadReply, ThreadRequest, ThreadTask } from './thread-protocol.js';
import { pack, unpack } from './wire.js';

const port = parentPort!;
const task = workerData as ThreadTask;
// Listening before anything is awaited, so that no batch is missed.
const requests = on(port, 'message');
const opened = await open();

if (opened) {
  await serve(opened);
}
// Ends the thread also where the module left a timer or a connection open; no native run is under way here.
process.exit();

/** One batch after the other, in the order of arrival: a batch that was handed ahead waits in the port. */
async function serve(functions: BatchFunctions): Promise<void> {
  for await (const [request] of requests as AsyncIterable<[ThreadRequest]>) {
    if (request === null) {
      return;
    }
    await answer(functions, request);
  }
}

async function answer(functions: BatchFunctions, { rows, context }: Exclude<ThreadRequest, null>): Promise<void> {
  try {
    const { output, metadata } = await functions.run(unpack(rows), context);
    const [wire, transfer] = pack(output, 'list' in rows);
    port.postMessage({ output: wire, metadata } satisfies ThreadReply, transfer);
  } catch (error) {
    port.postMessage({ error: toWire(error) } satisfies ThreadReply);
  }
}

async function open(): Promise<BatchFunctions | undefined> {
  try {
    const [factory, signature] = 'model' in task ? await openModel(task) : [await importFactory(task.file), undefined];
    const functions = await BatchFunctions.build(factory, task.partition, task.keys, task.options);
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

import { createServing } from '../../../index.js';
import type { Inspection } from '../inspect/inspection.js';
import { closedLoop, openLoop } from '../load/open-loop.js';
import { type GivenShapes, sampleRows } from '../load/sample-rows.js';
import type { Subject } from './search.js';
import type { Setting } from './settings.js';

export interface Measuring {
  /** Per call. */
  readonly rows: number;
  /** Seconds per load. */
  readonly duration: number;
  readonly shapes: GivenShapes;
}

export function definitionOf({ path, name, declared }: Inspection, setting: Setting) {
  const { partitions, threads, batchSize } = setting;
  const session = { intraOpNumThreads: threads, interOpNumThreads: 1 };
  const { inputs, outputs } = declared;
  return { name, model: { file: path, session, inputs, outputs }, partitions, batchSize };
}

export async function openModelSubject(
  inspection: Inspection,
  setting: Setting,
  { rows, duration, shapes }: Measuring,
): Promise<Subject> {
  const serving = createServing(definitionOf(inspection, setting));
  await serving.start();
  const ports = serving.signature!.inputs;
  const input = sampleRows(ports, rows, shapes);
  const call = (): Promise<unknown> => serving.batchedRun(input);
  // Full batches on all partitions, and as many again that wait.
  const callers = Math.ceil((2 * setting.batchSize * setting.partitions) / rows) + 1;
  return {
    async capacity() {
      // Warms up.
      await closedLoop(call, callers, duration / 4);
      return closedLoop(call, callers, duration / 2);
    },
    load: (rate) => openLoop({ rate, duration, call, mostOutstanding: 10_000 }),
    close: () => serving.close(),
  };
}

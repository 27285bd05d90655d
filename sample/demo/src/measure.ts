import type { INestApplication } from '@nestjs/common';
import { type BatchEndEvent, ServingService } from 'nestjs-serving';
import { execFile } from 'node:child_process';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import type { Load, LoadResult } from './load.js';

/** Figures of an application under load; times in ms. */
export interface Measurement extends LoadResult {
  readonly requests: number;
  readonly batches: number;
  readonly meanFill: number;
  readonly delayP99: number;
  readonly delayMax: number;
}

/** How often the event loop is asked whether it is late, in ms. */
const resolution = 1;

export async function measure(
  app: INestApplication,
  load: Omit<Load, 'url'>,
): Promise<Measurement> {
  const url = await app.getUrl();
  // The first round pays for compilation and is not counted; else the application that is measured
  // last would look best.
  await fire({ ...load, url });

  const batches: BatchEndEvent[] = [];
  const subscription = app
    .get(ServingService)
    .eventsOf('batch:end')
    .subscribe((event) => batches.push(event));
  const delay = monitorEventLoopDelay({ resolution });
  delay.enable();
  const result = await fire({ ...load, url });
  delay.disable();
  subscription.unsubscribe();

  return {
    ...result,
    requests: load.amount,
    batches: batches.length,
    meanFill: batches.reduce((sum, { fill }) => sum + fill, 0) / batches.length,
    delayP99: lateness(delay.percentile(99)),
    delayMax: lateness(delay.max),
  };
}

async function fire(load: Load): Promise<LoadResult> {
  const script = fileURLToPath(new URL('./load.js', import.meta.url));
  const { stdout } = await promisify(execFile)(process.execPath, [script, JSON.stringify(load)]);
  return JSON.parse(stdout) as LoadResult;
}

/**
 * The monitor records the nanoseconds between two looks; what is beyond the planned interval is the
 * delay.
 */
function lateness(nanoseconds: number): number {
  return Math.max(0, nanoseconds / 1e6 - resolution);
}

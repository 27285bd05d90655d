import { type Arrivals, arrive } from '../harness/arrivals.js';
import type { Connection } from './connection.js';
import { type LoadReport, reportLoad } from './load-report.js';

export interface OpenLoop extends Arrivals {
  readonly kind: 'open';
  /** The most requests that are under way at once; others wait for a connection. */
  readonly connections: number;
}

/**
 * Requests arrive by a Poisson process, whatever the server does. A latency counts from the moment
 * of arrival, not of sending, so a stall is charged to all who would have come meanwhile. What
 * still waits for a connection at the end is given up, and counts with the time it has waited by
 * then, which is a lower bound.
 */
export async function openLoop(
  load: OpenLoop,
  connections: readonly Connection[],
): Promise<LoadReport> {
  const idle = [...connections];
  const unsent: number[] = [];
  const latencies: number[] = [];
  const sending: Promise<void>[] = [];

  const start = performance.now();
  await arrive(load, (arrival) => {
    unsent.push(arrival);
    const connection = idle.pop();
    if (connection) {
      sending.push(sendAll(connection));
    }
  });
  const givenUp = unsent.splice(0).map((arrival) => performance.now() - arrival);
  await Promise.all(sending);
  return reportLoad(latencies, performance.now() - start, givenUp);

  async function sendAll(connection: Connection): Promise<void> {
    for (let arrival = unsent.shift(); arrival !== undefined; arrival = unsent.shift()) {
      await connection.send();
      latencies.push(performance.now() - arrival);
    }
    idle.push(connection);
  }
}

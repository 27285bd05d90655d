import type { Connection } from './connection.js';
import { type LoadReport, reportLoad } from './load-report.js';

export interface ClosedLoop {
  readonly kind: 'closed';
  readonly connections: number;
  readonly seconds: number;
}

/**
 * Every connection sends its next request as soon as it has the answer to the last: the load adapts
 * to the server.
 */
export async function closedLoop(
  { seconds }: ClosedLoop,
  connections: readonly Connection[],
): Promise<LoadReport> {
  const latencies: number[] = [];
  const start = performance.now();
  await Promise.all(
    connections.map(async (connection) => {
      for (let sent = start; sent < start + seconds * 1000; sent = performance.now()) {
        await connection.send();
        latencies.push(performance.now() - sent);
      }
    }),
  );
  return reportLoad(latencies, performance.now() - start);
}

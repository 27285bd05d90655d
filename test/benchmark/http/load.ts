import { type ClosedLoop, closedLoop } from './closed-loop.js';
import { Connection } from './connection.js';
import { type OpenLoop, openLoop } from './open-loop.js';

export interface LoadRequest {
  readonly port: number;
  readonly body: Uint8Array;
  readonly load: ClosedLoop | OpenLoop;
}

/** Connections stay open from one load to the next. */
const pools = new Map<number, Connection[]>();

/**
 * The load generator: a process of its own that answers every load it is asked for with a report.
 */
process.on('message', (request: LoadRequest) => void answer(request));
process.on('disconnect', () => process.exit());
process.send?.('ready');

async function answer({ port, body, load }: LoadRequest): Promise<void> {
  const connections = await connectionsTo(port, body, load.connections);
  process.send?.(
    load.kind === 'closed'
      ? await closedLoop(load, connections)
      : await openLoop(load, connections),
  );
}

async function connectionsTo(port: number, body: Uint8Array, count: number): Promise<Connection[]> {
  const pool = pools.get(port) ?? [];
  pools.set(port, pool);
  while (pool.length < count) {
    pool.push(await Connection.open(port, body));
  }
  return pool.slice(0, count);
}

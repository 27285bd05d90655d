import { type ClosedLoop, closedLoop } from './closed-loop.js';
import { Connection } from './connection.js';
import { type OpenLoop, openLoop } from './open-loop.js';
import type { Post } from './post.js';

export interface LoadRequest {
  readonly port: number;
  readonly post: Post;
  readonly load: ClosedLoop | OpenLoop;
}

/** Connections stay open from one load to the next. */
const pools = new Map<string, Connection[]>();

/**
 * The load generator: a process of its own that answers every load it is asked for with a report.
 */
process.on('message', (request: LoadRequest) => void answer(request));
process.on('disconnect', () => process.exit());
process.send?.('ready');

async function answer({ port, post, load }: LoadRequest): Promise<void> {
  const connections = await connectionsTo(port, post, load.connections);
  process.send?.(
    load.kind === 'closed'
      ? await closedLoop(load, connections)
      : await openLoop(load, connections),
  );
}

async function connectionsTo(port: number, post: Post, count: number): Promise<Connection[]> {
  const key = `${port}${post.path}`;
  const pool = pools.get(key) ?? [];
  pools.set(key, pool);
  while (pool.length < count) {
    pool.push(await Connection.open(port, post));
  }
  return pool.slice(0, count);
}

import { Agent, request } from 'node:http';
import { performance } from 'node:perf_hooks';

export interface Load {
  readonly url: string;
  readonly requests: readonly LoadRequest[];
  /** How many requests in all. */
  readonly amount: number;
  /** How many of them are under way at any time. */
  readonly connections: number;
}

export interface LoadRequest {
  readonly path: string;
  readonly method?: string;
  readonly headers?: Record<string, string>;
  readonly body?: string;
}

/** Times in ms. */
export interface LoadResult {
  readonly failed: number;
  readonly p50: number;
  readonly p99: number;
  readonly perSecond: number;
}

/**
 * Run as a process of its own, so that making the load does not disturb the event loop that is
 * measured.
 */
const { url, requests, amount, connections } = JSON.parse(process.argv[2] ?? '') as Load;

// Not fetch, which takes as much CPU per request as the application that is measured.
const agent = new Agent({ keepAlive: true, maxSockets: connections });
const latencies: number[] = [];
let sent = 0;
let failed = 0;

async function keepAsking(): Promise<void> {
  while (sent < amount) {
    const start = performance.now();
    const succeeded = await ask(requests[sent++ % requests.length]!);
    latencies.push(performance.now() - start);
    failed += succeeded ? 0 : 1;
  }
}

function ask({ path, body, ...options }: LoadRequest): Promise<boolean> {
  return new Promise((resolve) => {
    request(new URL(path, url), { ...options, agent }, (response) => {
      response.resume().on('end', () => resolve(response.statusCode! < 300));
    })
      .on('error', () => resolve(false))
      .end(body);
  });
}

const start = performance.now();
await Promise.all(Array.from({ length: connections }, keepAsking));
const seconds = (performance.now() - start) / 1000;

latencies.sort((one, other) => one - other);
const quantile = (share: number) => latencies[Math.floor((latencies.length - 1) * share)]!;
const result: LoadResult = {
  failed,
  p50: quantile(0.5),
  p99: quantile(0.99),
  perSecond: amount / seconds,
};
agent.destroy();
process.stdout.write(JSON.stringify(result));

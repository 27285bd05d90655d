import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import type { Questions } from './questions.js';

export interface WrkReport {
  readonly answers: number;
  readonly seconds: number;
  /** Requests that failed or had another status than 2xx. */
  readonly failed: number;
  /** Milliseconds. */
  readonly p50: number;
  readonly p99: number;
}

/** Loads the server with connections that ask again as soon as they have the answer. */
export async function wrk(
  port: number,
  { path, file }: Questions,
  connections: number,
  seconds: number,
): Promise<WrkReport> {
  const { stdout } = await promisify(execFile)(
    'wrk',
    [
      '-t1',
      `-c${connections}`,
      `-d${seconds}s`,
      '--timeout=20s',
      '--script=test/benchmark/peers/wrk.lua',
      `http://127.0.0.1:${port}${path}`,
      file,
    ],
    { env: { ...process.env, CONNECTIONS: `${connections}` } },
  );
  const report = JSON.parse(/^JSON (.*)$/m.exec(stdout)?.[1] ?? 'null') as
    (WrkReport & { honest: boolean }) | null;
  if (!report?.honest) {
    throw new Error(`the latencies of this wrk cannot be trusted: ${stdout}`);
  }
  return report;
}

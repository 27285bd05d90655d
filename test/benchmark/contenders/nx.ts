import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface, type Interface } from 'node:readline';

export interface NxLoad {
  readonly callers: number;
  readonly size: number;
  readonly batchSize: number;
  readonly batchTimeout: number;
}

/** The baseline of P15: an identity serving of Nx in a process of Elixir. */
export class NxServing {
  private constructor(
    private readonly child: ChildProcess,
    private readonly lines: Interface,
  ) {}

  /** Undefined where Elixir or Nx is missing. */
  static async start(load: NxLoad): Promise<NxServing | undefined> {
    const { callers, size, batchSize, batchTimeout } = load;
    const options = [callers, size, batchSize, batchTimeout].map(String);
    const child = spawn('elixir', ['test/benchmark/nx/serving.exs', ...options], {
      stdio: ['pipe', 'pipe', 'ignore'],
    });
    const lines = createInterface(child.stdout);
    const isReady = await new Promise<boolean>((resolve) => {
      child.once('error', () => resolve(false));
      child.once('exit', () => resolve(false));
      lines.on('line', (line) => line === 'ready' && resolve(true));
    });
    return isReady ? new NxServing(child, lines) : undefined;
  }

  async rowsPerSecond(seconds: number): Promise<number> {
    const answer = once(this.lines, 'line');
    this.child.stdin?.write(`${seconds.toFixed(3)}\n`);
    return Number((await answer)[0]);
  }

  async close(): Promise<void> {
    const exit = once(this.child, 'exit');
    this.child.stdin?.end();
    await exit;
  }
}

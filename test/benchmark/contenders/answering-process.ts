import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface, type Interface } from 'node:readline';

/** A process of another language, which writes `ready`, and then a number for each line it reads. */
export class AnsweringProcess {
  private constructor(
    private readonly child: ChildProcess,
    private readonly lines: Interface,
  ) {}

  /** Undefined if it can't be started, or ends before it is ready. */
  static async start(
    command: string,
    args: readonly string[],
  ): Promise<AnsweringProcess | undefined> {
    const child = spawn(command, args, { stdio: ['pipe', 'pipe', 'ignore'] });
    const lines = createInterface(child.stdout);
    const isReady = await new Promise<boolean>((resolve) => {
      child.once('error', () => resolve(false));
      child.once('exit', () => resolve(false));
      lines.on('line', (line) => line === 'ready' && resolve(true));
    });
    return isReady ? new AnsweringProcess(child, lines) : undefined;
  }

  async ask(question: string): Promise<number> {
    const answer = once(this.lines, 'line');
    this.child.stdin?.write(`${question}\n`);
    return Number((await answer)[0]);
  }

  async close(): Promise<void> {
    const exit = once(this.child, 'exit');
    this.child.stdin?.end();
    await exit;
  }
}

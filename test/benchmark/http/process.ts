import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';

/** A child process that answers one question at a time. */
export class Process<Question, Answer> {
  private constructor(
    private readonly child: ChildProcess,
    /** The child's first message, which it sends when it is ready. */
    readonly greeting: unknown,
  ) {}

  static async start<Question, Answer>(
    module: URL,
    ...args: string[]
  ): Promise<Process<Question, Answer>> {
    const child = fork(module, args, { serialization: 'advanced' });
    child.once('exit', (code) => {
      if (code !== 0) throw new Error(`${module.pathname} ${args.join(' ')} ended with ${code}`);
    });
    const [greeting] = await once(child, 'message');
    return new Process(child, greeting);
  }

  get pid(): number {
    return this.child.pid ?? NaN;
  }

  async ask(question: Question): Promise<Answer> {
    const answer = once(this.child, 'message');
    this.child.send(question as object);
    return (await answer)[0] as Answer;
  }

  async close(): Promise<void> {
    const exit = once(this.child, 'exit');
    this.child.disconnect();
    await exit;
  }
}

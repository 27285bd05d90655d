// #region processes
import { type ChildProcess, fork } from 'node:child_process';
import cluster from 'node:cluster';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';

/** One process with the model and some with the web application. One that ends starts again. */
export class Processes {
  private isStopping = false;
  readonly webs = new Set<ChildProcess>();
  readonly models = new Set<ChildProcess>();

  constructor(webProcesses: number) {
    cluster.setupPrimary({ exec: fileURLToPath(new URL('./web.js', import.meta.url)) });
    this.keep(this.models, () => fork(new URL('./model.js', import.meta.url)));
    for (let started = 0; started < webProcesses; started++) {
      this.keep(this.webs, () => cluster.fork().process);
    }
  }

  /** The web processes first, because the calls that they finish need the model. */
  async stop(): Promise<void> {
    this.isStopping = true;
    for (const children of [this.webs, this.models]) {
      const exits = [...children].map((child) => once(child, 'exit'));
      children.forEach((child) => child.kill('SIGTERM'));
      await Promise.all(exits);
    }
  }

  private keep(children: Set<ChildProcess>, start: () => ChildProcess): void {
    const child = start();
    children.add(child);
    child.once('exit', () => {
      children.delete(child);
      // A pause, because a process that fails at its start would fail again at once.
      setTimeout(() => this.isStopping || this.keep(children, start), 500);
    });
  }
}
// #endregion

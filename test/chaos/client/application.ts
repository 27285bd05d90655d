import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { setTimeout } from 'node:timers/promises';
import type { Admin, LastWords, ServerOptions } from '../server/options.js';
import { signalTo } from '../signals.js';
import { HttpClient } from './http-client.js';

/** From the root of the repository, where both the runner and the tests are started. */
const server = 'test/chaos/dist/server/main.js';

/** How often it is asked whether something has come about, in milliseconds. */
const PATIENCE = 20;

/** How an application ended, once nothing of it is left. */
export interface Ending {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly lastWords: LastWords | undefined;
}

/** The application in a process of its own, as it is seen from outside. */
export class Application {
  /**
   * Resolves when it has ended, and all of its processes with it: they have inherited its output,
   * and nobody can write to that any more.
   */
  readonly ended: Promise<Ending>;
  /** What it printed beside, such as warnings. */
  output = '';
  private lastWords: LastWords | undefined;
  private readonly client: HttpClient;

  private constructor(
    private readonly child: ChildProcess,
    readonly url: string,
  ) {
    this.client = new HttpClient(url, 1);
    this.ended = once(child, 'close').then(([code, signal]) => {
      this.client.close();
      return {
        code: code as number | null,
        signal: signal as NodeJS.Signals | null,
        lastWords: this.lastWords,
      };
    });
  }

  /** Resolves when it listens. */
  static async start(
    options: ServerOptions,
    environment: NodeJS.ProcessEnv = {},
  ): Promise<Application> {
    const child = spawn(process.execPath, [server, JSON.stringify(options)], {
      stdio: 'pipe',
      env: { ...process.env, ...environment },
    });
    let output = '';
    let application: Application | undefined;
    const complain = (text: string): void => {
      output += text;
      if (application) {
        application.output += text;
      }
    };
    child.stderr.setEncoding('utf8').on('data', complain);
    const lines = createInterface({ input: child.stdout });
    return new Promise((resolve, reject) => {
      child.once('close', (code) =>
        reject(new Error(`The application ended with ${code}: ${output}`)),
      );
      lines.on('line', (line) => {
        if (!line.startsWith('{')) {
          complain(`${line}\n`);
          return;
        }
        const words = JSON.parse(line) as { url: string } | LastWords;
        if ('url' in words) {
          application = new Application(child, words.url);
          resolve(application);
        } else if (application) {
          application.lastWords = words;
        }
      });
    });
  }

  /** The numbers of its partition processes. */
  processes(): number[] {
    const { pid } = this.child;
    if (process.platform === 'linux') {
      return readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8')
        .split(' ')
        .filter(Boolean)
        .map(Number);
    }
    const all = execFileSync('ps', ['-A', '-o', 'pid=,ppid='], { encoding: 'utf8' })
      .trim()
      .split('\n');
    return all
      .map((line) => line.trim().split(/\s+/).map(Number))
      .flatMap(([own = 0, parent]) => (parent === pid ? [own] : []));
  }

  async admin(): Promise<Admin> {
    const { body } = await this.client.send('GET', '/admin');
    return JSON.parse(body) as Admin;
  }

  /** Resolves with what it says of itself once that is so. */
  async until(isSo: (admin: Admin) => boolean): Promise<Admin> {
    for (;;) {
      const admin = await this.admin();
      if (isSo(admin)) {
        return admin;
      }
      await setTimeout(PATIENCE);
    }
  }

  /** Resolves when all of its partitions work. */
  recovered(): Promise<Admin> {
    return this.until(({ partitions }) => partitions.every((state) => state === 'up'));
  }

  /**
   * Limits the files that it may have open, sockets among them, where that can be done. It could not
   * boot with so few, since Node opens many modules at once.
   */
  limitFiles(most: number): boolean {
    const { pid } = this.child;
    return spawnSync('prlimit', [`--pid=${pid}`, `--nofile=${most}`]).status === 0;
  }

  kill(signal: NodeJS.Signals): void {
    this.child.kill(signal);
  }

  /** Ends it and all of its processes, also those that are stopped and do not notice. */
  async destroy(): Promise<void> {
    if (this.child.exitCode === null && this.child.signalCode === null) {
      const processes = this.processes();
      this.child.kill('SIGKILL');
      processes.forEach((pid) => signalTo(pid, 'SIGKILL'));
    }
    await this.ended;
  }
}

import { type ChildProcess, spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { closeSync, mkdirSync, openSync, readdirSync, readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import { cpuOf } from '../harness/cpu-of.js';
import { proportionalSetSize } from '../harness/memory-of.js';
import { folder, type Peer } from './peers.js';
import type { Questions } from './questions.js';

const [bootSeconds, answerSeconds, stopSeconds] = [60, 30, 20];

/** A running server with all of its processes, which carry a mark in their environment. */
export class Server {
  private readonly mark = randomUUID();
  private readonly child: ChildProcess;

  constructor(
    { name, command, env }: Peer,
    model: string,
    private readonly port: number,
  ) {
    mkdirSync(join(folder, 'logs'), { recursive: true });
    const log = openSync(join(folder, 'logs', `${name.replaceAll(/\W+/g, '-')}.log`), 'w');
    const [file, ...args] = command.map((part) => part.replace('{port}', `${port}`));
    this.child = spawn(file!, args, {
      env: { ...process.env, ...env, MODEL: resolve(model), PORT: `${port}`, PEER: this.mark },
      stdio: ['ignore', log, log],
      detached: true,
    });
    this.child.once('error', () => undefined);
    closeSync(log);
  }

  /** Resolves when the server has answered. */
  async answers(questions: Questions): Promise<void> {
    for (const end = Date.now() + bootSeconds * 1000; Date.now() < end; await setTimeout(100)) {
      if (this.child.exitCode !== null || this.child.pid === undefined) {
        break;
      }
      if ((await this.ask(questions, 0).catch(() => undefined)) !== undefined) {
        return;
      }
    }
    throw new Error('does not answer');
  }

  /** How many of the answers are wrong when all are asked for at once. */
  async wrong(questions: Questions): Promise<number> {
    const replies = await Promise.allSettled(
      questions.bodies.map((_, body) => this.ask(questions, body)),
    );
    return replies.filter(
      (reply, body) => reply.status === 'rejected' || !questions.isRight(reply.value, body),
    ).length;
  }

  /** CPU time so far, in microseconds. */
  cpu(): number {
    return this.sum((pid) => cpuOf(pid).all);
  }

  /** Megabytes. */
  memory(): number {
    return this.sum(proportionalSetSize);
  }

  async stop(): Promise<void> {
    this.child.kill('SIGTERM');
    for (let waited = 0; waited < stopSeconds && this.pids().length > 0; waited += 0.1) {
      await setTimeout(100);
    }
    this.pids().forEach((pid) => process.kill(pid, 'SIGKILL'));
  }

  /** Undefined if the server refuses. */
  private async ask({ path, bodies }: Questions, body: number): Promise<unknown> {
    const response = await fetch(`http://127.0.0.1:${this.port}${path}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: bodies[body]!,
      signal: AbortSignal.timeout(answerSeconds * 1000),
    });
    const reply: unknown = await response.json();
    return response.ok ? reply : undefined;
  }

  private sum(value: (pid: number) => number): number {
    return this.pids().reduce((sum, pid) => sum + orNothing(() => value(pid)), 0);
  }

  private pids(): number[] {
    return readdirSync('/proc')
      .filter((name) => /^\d+$/.test(name))
      .filter((pid) =>
        orNothing(() => readFileSync(`/proc/${pid}/environ`, 'latin1').indexOf(this.mark) + 1),
      )
      .map(Number);
  }
}

/** Nothing of a process that has just ended. */
function orNothing(value: () => number): number {
  try {
    return value();
  } catch {
    return 0;
  }
}

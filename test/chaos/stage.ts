import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import { Application } from './client/application.js';
import type { MakeCall } from './client/calls.js';
import { Load } from './client/load.js';
import type { Tally } from './client/tally.js';
import type { Scenario } from './scenario.js';
import type { ServerOptions } from './server/options.js';
import { signalTo } from './signals.js';

export interface StageOptions {
  /** How often the bad thing happens. */
  readonly rounds: number;
  /**
   * Milliseconds between two rounds; without them the next comes when nothing of the last one is
   * left.
   */
  readonly pause?: number;
  /** Whether there is time for what takes half a minute. */
  readonly isPatient: boolean;
  readonly random: () => number;
  /** Milliseconds after which a scenario hangs. */
  readonly limit: number;
}

/** What was promised, in words, and what was seen of it. */
export interface Finding {
  readonly words: string;
  readonly isKept: boolean;
  readonly seen: unknown;
}

/** What became of a scenario. */
export interface Outcome {
  readonly findings: readonly Finding[];
  readonly tallies: readonly Tally[];
  /** Restarts of partitions that were seen. */
  readonly restarts: number;
  /** Figures that the table has no column for. */
  readonly notes: readonly string[];
}

/** Where a scenario plays: it starts applications and loads, none of which outlives it. */
export class Stage {
  readonly folder: string;
  restarts = 0;
  private readonly applications: Application[] = [];
  private readonly tallies: Tally[] = [];
  private readonly findings: Finding[] = [];
  private readonly notes: string[] = [];

  private constructor(
    private readonly options: StageOptions,
    folder: string,
  ) {
    this.folder = folder;
  }

  static async play(scenario: Scenario, options: StageOptions): Promise<Outcome> {
    const stage = new Stage(options, await mkdtemp(join(tmpdir(), 'chaos-')));
    const overdue = new AbortController();
    try {
      const limit = setTimeout(options.limit, 'overdue', { signal: overdue.signal });
      const end = await Promise.race([scenario.play(stage), limit]);
      stage.check(`it ends within ${options.limit / 1000} s`, end !== 'overdue', end);
    } catch (error) {
      stage.check('nothing unforeseen happens', false, String(error));
    } finally {
      overdue.abort();
      await stage.clear();
    }
    const { findings, tallies, restarts, notes } = stage;
    return { findings, tallies, restarts, notes };
  }

  get isPatient(): boolean {
    return this.options.isPatient;
  }

  async start(options: ServerOptions, environment?: NodeJS.ProcessEnv): Promise<Application> {
    const application = await Application.start(options, environment);
    this.applications.push(application);
    return application;
  }

  /** Puts the application under load, and resolves when that runs. */
  async load(application: Application, callers: readonly MakeCall[]): Promise<Load> {
    const load = new Load(application, callers);
    this.tallies.push(load.tally);
    await load.answered(4 * callers.length);
    return load;
  }

  /** The rounds of the scenario, or so large a share of them where one takes its time. */
  async *rounds(application: Application, load: Load, share = 1): AsyncGenerator<number> {
    const { rounds, pause } = this.options;
    for (let round = 0; round < Math.ceil(rounds * share); round++) {
      yield round;
      await (pause === undefined ? this.calm(application, load) : setTimeout(pause));
    }
  }

  /**
   * Resolves when all partitions work, and every call that can have met what was before has ended.
   */
  async calm(application: Application, load: Load): Promise<void> {
    await application.recovered();
    await load.settled();
  }

  pick<T>(values: readonly T[]): T | undefined {
    return values[Math.floor(this.options.random() * values.length)];
  }

  /** Sends a signal to one of the partition processes, if there is one; gives its number. */
  signalOne(application: Application, signal: NodeJS.Signals): number | undefined {
    const pid = this.pick(application.processes());
    if (pid !== undefined) {
      signalTo(pid, signal);
    }
    return pid;
  }

  check(words: string, isKept: boolean, seen: unknown): void {
    this.findings.push({ words, isKept, seen });
  }

  note(text: string): void {
    this.notes.push(text);
  }

  /** A number from 0 up to 1. */
  random(): number {
    return this.options.random();
  }

  /** Each call had its own answer. */
  checkUnharmed({ failures, lost, wrong }: Tally): void {
    this.check('no call fails', failures.size === 0, Object.fromEntries(failures));
    this.check('no call is left without an answer', lost === 0, lost);
    this.check('nobody gets the answer of somebody else', wrong === 0, wrong);
  }

  private async clear(): Promise<void> {
    for (const application of this.applications) {
      await application.destroy();
    }
    await rm(this.folder, { recursive: true });
  }
}

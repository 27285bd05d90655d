import { AsyncLocalStorage } from 'node:async_hooks';
import { CallCycleError } from '../errors.js';

let batches = 0;

/** A running batch whose function may call servings. */
export class CallingBatch {
  /** Its calls without an answer. */
  private readonly calls = new Map<FollowedCall, WaitingCalls>();
  readonly id = batches++;
  hasEnded = false;

  constructor(readonly serving: string) {}

  /** Follows a call of its function. The result is called when the call has ended. */
  follow(call: FollowedCall, queue: WaitingCalls): () => void {
    call.runs = [];
    this.calls.set(call, queue);
    return () => this.calls.delete(call);
  }

  /** Lists what its calls wait for, each once. */
  waits(): Wait[] {
    const seen = new Set<object>();
    const waits: Wait[] = [];
    for (const [call, queue] of this.calls) {
      const place = (call.waiting === 0 && call.runs?.at(-1)) || call.lane;
      if (!seen.has(place)) {
        seen.add(place);
        waits.push(...queue.waitsOf(call));
      }
    }
    return waits;
  }
}

/** One of these batches must end before a call goes on. Undefined for one that calls no servings. */
type Wait = readonly (CallingBatch | undefined)[];

/** A call's rows in a queue, as the search for cycles sees them. */
interface FollowedCall {
  readonly lane: object;
  readonly waiting: number;
  /** Batches that have taken its rows. */
  runs: object[] | undefined;
}

export interface WaitingCalls {
  /** What must happen before the call, which may not be queued yet, has its answer. */
  waitsOf(call: FollowedCall): Wait[];
}

const storage = new AsyncLocalStorage<CallingBatch>();
/** The batch whose function runs now, up to its first await. */
let current: CallingBatch | undefined;

/** The batch whose function makes the current call, if it still runs. */
export function callingBatch(): CallingBatch | undefined {
  const batch = current ?? storage.getStore();
  return batch?.hasEnded ? undefined : batch;
}

/** Partitions that use the storage. */
let users = 0;

/** Batches with a synchronous result after which we take a function to be synchronous. */
const SURE = 100;

/**
 * Runs a partition's function so that its calls know their batch. A synchronous function needs no
 * storage, for which Node 20 and 22 slow down each promise of the process.
 */
export class FunctionCalls {
  private synchronous = 0;
  private isUser = false;

  run<T>(batch: CallingBatch | undefined, work: () => T): T {
    if (!batch) {
      return work();
    }
    const isTracked = this.synchronous < SURE;
    if (isTracked && !this.isUser) {
      this.isUser = true;
      users++;
    }
    const result = isTracked ? storage.run(batch, work) : inTurnOf(batch, work);
    this.synchronous = result instanceof Promise ? -Infinity : this.synchronous + 1;
    if (this.synchronous >= SURE) {
      this.end();
    }
    return result;
  }

  /** The last one frees the process of the storage's cost. */
  end(): void {
    if (this.isUser) {
      this.isUser = false;
      if (--users === 0) {
        storage.disable();
      }
    }
  }
}

function inTurnOf<T>(batch: CallingBatch, work: () => T): T {
  current = batch;
  try {
    return work();
  } finally {
    current = undefined;
  }
}

/**
 * A call of a batch's function closes a cycle if it waits for this batch, or only for batches whose
 * own calls wait in turn. Only a new call can close a cycle: until then, one batch goes on.
 *
 * @throws CallCycleError naming the servings of the cycle
 */
export function refuseCycle(caller: CallingBatch, serving: string, waits: readonly Wait[]): void {
  const stuck = stuckBehind(caller, waits);
  const blocked = waits.find((wait) => isStuck(wait, stuck));
  if (blocked) {
    const path = [caller.serving, ...pathTo(caller, blocked, stuck)];
    const names = path.map((name) => `"${name}"`).join(' -> ');
    throw new CallCycleError(
      `Serving "${serving}": this call is made by a batch function and cannot run before that ` +
        `batch has ended, since its partitions wait for it (${names}); call the serving before ` +
        'or after the batch, or call a plain function instead of the serving',
    );
  }
}

type Waits = ReadonlyMap<CallingBatch, readonly Wait[]>;

/** Batches that can't end before the call's, if the call waits, with what they wait for. */
function stuckBehind(caller: CallingBatch, waits: readonly Wait[]): Waits {
  const stuck = new Map([[caller, waits]]);
  // Includes all batches that are reached, as the list grows.
  for (const [, next] of stuck) {
    for (const batch of next.flat()) {
      if (batch && !stuck.has(batch)) {
        stuck.set(batch, batch.waits());
      }
    }
  }
  for (let before = 0; before !== stuck.size;) {
    before = stuck.size;
    for (const [batch, own] of stuck) {
      if (batch !== caller && !own.some((wait) => isStuck(wait, stuck))) {
        stuck.delete(batch);
      }
    }
  }
  return stuck;
}

function isStuck(wait: Wait, stuck: Waits): boolean {
  return wait.every((batch) => batch !== undefined && stuck.has(batch));
}

/** The servings' names from the call on to its own batch. */
function pathTo(caller: CallingBatch, from: Wait, stuck: Waits): string[] {
  const reached = new Set<CallingBatch>();
  const open: [CallingBatch, string[]][] = from.map((batch) => [batch!, [batch!.serving]]);
  for (const [batch, path] of open) {
    if (batch === caller) {
      return path;
    }
    if (!reached.has(batch)) {
      reached.add(batch);
      for (const next of stuck.get(batch)!.flat()) {
        if (next && stuck.has(next)) {
          open.push([next, [...path, next.serving]]);
        }
      }
    }
  }
  return [];
}

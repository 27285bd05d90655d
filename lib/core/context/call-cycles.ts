import { AsyncLocalStorage } from 'node:async_hooks';
import { CallCycleError } from '../errors.js';

let batches = 0;

export class CallingBatch {
  private readonly calls = new Map<FollowedCall, WaitingCalls>();
  readonly id = batches++;
  hasEnded = false;

  constructor(readonly serving: string) {}

  /** The result ends the tracking. */
  follow(call: FollowedCall, queue: WaitingCalls): () => void {
    call.runs = [];
    this.calls.set(call, queue);
    return () => this.calls.delete(call);
  }

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

/** One of these batches must end before a call goes on; undefined calls no servings. */
type Wait = readonly (CallingBatch | undefined)[];

interface FollowedCall {
  readonly lane: object;
  readonly waiting: number;
  runs: object[] | undefined;
}

export interface WaitingCalls {
  /** Includes calls that aren't queued yet. */
  waitsOf(call: FollowedCall): Wait[];
}

const storage = new AsyncLocalStorage<CallingBatch>();
/** Batch whose function runs now, up to its first await. */
let current: CallingBatch | undefined;

/** Undefined once the batch has ended. */
export function callingBatch(): CallingBatch | undefined {
  const batch = current ?? storage.getStore();
  return batch?.hasEnded ? undefined : batch;
}

/** Partitions that use the storage. */
let users = 0;

/** Synchronous results after which we consider a function synchronous. */
const SURE = 100;

/**
 * Lets a function's calls find their batch. A synchronous function needs no storage, for which Node
 * 20 and 22 slow down each promise of the process.
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

  /** The last one disables the storage and its cost. */
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
 * Refuses a call that waits for its own batch, or only for batches whose calls wait for it in turn.
 * Only a new call can close a cycle: until then, one batch goes on.
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

/** Batches that can't end before the call's, with what they wait for. */
function stuckBehind(caller: CallingBatch, waits: readonly Wait[]): Waits {
  const stuck = new Map([[caller, waits]]);
  // The list grows by the batches that are reached.
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

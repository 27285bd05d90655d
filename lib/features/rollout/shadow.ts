import { isDeepStrictEqual, types } from 'node:util';
import { isPlainObject } from '../../core/batch/container.js';
import { copyInput, deepCopy } from '../../core/batch/deep-copy.js';
import { elementAt, isTensor, type Tensor } from '../../core/batch/tensor.js';
import type { CallOptions } from '../../core/context/call-context.js';
import type { ResolvedServing } from '../../core/definition/resolved-serving.js';
import type { LoadedVersion } from '../../core/versions/loaded-version.js';
import type { VersionStatus } from '../../core/versions/serving-version.js';
import type { VersionPlace, VersionPolicy } from '../../core/versions/version-policy.js';

/** A shadow's replies, compared with those that callers got. */
export interface ShadowComparison {
  /** Compared replies. */
  readonly compared: number;
  /** Compared replies that differ. */
  readonly different: number;
  /** Share of elements that differ, from 0 to 1, over all compared replies. */
  readonly differing: number;
  /** Largest difference of two numbers. */
  readonly largestDifference: number;
  /** Copies that failed on the shadow. */
  readonly failed: number;
  /** Calls in the share that weren't copied, since rows waited, or couldn't be compared. */
  readonly dropped: number;
}

/** Runs copies of its share of the calls, and compares the replies. */
export const shadow: VersionPolicy = {
  isHidden: true,
  obstacle: (options, loaded) =>
    [...loaded].some(({ role }) => role === 'shadow')
      ? 'it has one already; promote it or roll it back first'
      : obstacleIn(options),
  placeOf: (version) => new Shadow(version),
};

function obstacleIn({
  states,
  continuous,
  isolation,
  recovery,
}: ResolvedServing): string | undefined {
  const stateful = states ?? continuous;
  if (stateful) {
    return `it has ${stateful.kind}, whose copies would have states of their own`;
  }
  if (isolation === 'none') {
    return 'its model runs in the thread of the application, where copies would delay all calls';
  }
  return recovery.idempotent
    ? undefined
    : 'its batches must not run twice; say recovery.idempotent: true if they may';
}

/** Copies that run at a time. */
const MOST_COPIES = 32;

const LOWEST = -10;

/**
 * Runs copies of calls on a version that answers none, and compares the replies. A copy runs only
 * while nothing waits, and its failure is counted.
 */
class Shadow implements VersionPlace {
  private readonly copies = new Set<Promise<void>>();
  private readonly totals = { compared: 0, different: 0, failed: 0, dropped: 0 };
  private elements = 0;
  private differing = 0;
  private largest = 0;

  constructor(private readonly version: LoadedVersion) {}

  get status(): Pick<VersionStatus, 'comparison'> {
    const { elements, differing, largest, totals } = this;
    const share = elements === 0 ? 0 : differing / elements;
    return { comparison: { ...totals, differing: share, largestDifference: largest } };
  }

  /**
   * Copies a call's input, if it is in the share, before it runs on the active version. The result
   * takes its reply.
   */
  sees(
    input: unknown,
    { key, origin }: CallOptions,
    active: LoadedVersion,
  ): ((reply: Promise<unknown>) => void) | undefined {
    if (Math.random() >= this.version.share) {
      return undefined;
    }
    const { copies, version, totals } = this;
    const isBusy = active.queued + version.queued > 0 || copies.size >= MOST_COPIES;
    const copy = isBusy ? input : copyInput(input);
    const isCopied = copy !== input || typeof input !== 'object';
    if (isBusy || !isCopied) {
      // What can't be copied, such as an iterator, has one reader.
      totals.dropped++;
      return undefined;
    }
    return (reply) => {
      const kept = reply.then((answer) => ({ answer: deepCopy(answer) }));
      const run = version.pipeline!.run(copy, { priority: LOWEST, key, origin });
      const compared = this.compare(kept, run);
      copies.add(compared);
      void compared.then(() => copies.delete(compared));
    };
  }

  async idle(): Promise<void> {
    await Promise.all(this.copies);
  }

  private async compare(
    kept: Promise<{ readonly answer: unknown }>,
    run: Promise<unknown>,
  ): Promise<void> {
    const { totals } = this;
    const [before, after] = await Promise.allSettled([kept, run]);
    if (before.status === 'rejected') {
      totals.dropped++;
      return;
    }
    if (after.status === 'rejected') {
      totals.failed++;
      return;
    }
    try {
      this.add(differencesOf(after.value, before.value.answer));
    } catch {
      // A reply may hold objects that throw when they are read.
      totals.dropped++;
    }
  }

  private add({ elements, differing, largest }: Difference): void {
    this.totals.compared++;
    this.totals.different += differing > 0 ? 1 : 0;
    this.elements += elements;
    this.differing += differing;
    this.largest = Math.max(this.largest, largest);
  }
}

interface Difference {
  elements: number;
  differing: number;
  largest: number;
}

/**
 * We compare at most this many elements of a tensor, spread evenly: the event loop waits for them.
 */
const MOST_ELEMENTS = 65_536;

interface Tolerance {
  readonly relative: number;
  readonly absolute: number;
}

const FLOAT: Tolerance = { relative: 1e-3, absolute: 1e-5 };
const HALF: Tolerance = { relative: 1e-2, absolute: 1e-2 };

/**
 * Compares plain data and tensors, element by element. Floating-point numbers are equal within
 * `|a - b| <= absolute + relative * |b|`, and NaN equals NaN; all else must be the same.
 */
function differencesOf(a: unknown, b: unknown): Difference {
  const difference = { elements: 0, differing: 0, largest: 0 };
  compare(a, b, difference);
  return difference;
}

function compare(a: unknown, b: unknown, into: Difference): void {
  if (isTensor(a) && isTensor(b)) {
    compareTensors(a, b, into);
  } else if (isList(a) && isList(b)) {
    compareLists(a, b, into);
  } else if (isPlainObject(a) && isPlainObject(b)) {
    const [one, other] = [a, b] as Record<string, unknown>[];
    for (const name of new Set([...Object.keys(one!), ...Object.keys(other!)])) {
      compare(one![name], other![name], into);
    }
  } else {
    count(isEqual(a, b, FLOAT, into), into);
  }
}

function compareTensors(a: Tensor, b: Tensor, into: Difference): void {
  const isHalf = a.type === 'float16';
  const isFloat = isHalf || a.type === 'float32' || a.type === 'float64';
  if (a.type !== b.type || a.dims.join() !== b.dims.join()) {
    into.elements += a.size;
    into.differing += a.size;
    return;
  }
  const step = Math.ceil(a.size / MOST_ELEMENTS);
  for (let at = 0; at < a.size; at += step) {
    const [one, other] = [elementAt(a, at), elementAt(b, at)];
    count(isFloat ? isEqual(one, other, isHalf ? HALF : FLOAT, into) : one === other, into);
  }
}

function compareLists(a: ArrayLike<unknown>, b: ArrayLike<unknown>, into: Difference): void {
  const length = Math.max(a.length, b.length);
  const step = Math.max(1, Math.ceil(length / MOST_ELEMENTS));
  for (let at = 0; at < length; at += step) {
    compare(a[at], b[at], into);
  }
}

function isEqual(a: unknown, b: unknown, tolerance: Tolerance, into: Difference): boolean {
  if (typeof a !== 'number' || typeof b !== 'number' || Object.is(a, b)) {
    return isDeepStrictEqual(a, b);
  }
  const distance = Math.abs(a - b);
  if (!Number.isFinite(distance)) {
    return false;
  }
  into.largest = Math.max(into.largest, distance);
  return distance <= tolerance.absolute + tolerance.relative * Math.abs(b);
}

function isList(value: unknown): value is ArrayLike<unknown> {
  return Array.isArray(value) || types.isTypedArray(value);
}

function count(isSame: boolean, into: Difference): void {
  into.elements++;
  into.differing += isSame ? 0 : 1;
}

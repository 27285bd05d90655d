import type { Tensor } from 'onnxruntime-common';
import { InvalidBatchError, isServingError, messageOf } from '../errors.js';
import { truncate } from '../format.js';
import { isTensor } from './tensor.js';

/** A tensor, or a named map, tuple or nesting of tensors: batched leaf by leaf. */
export type Container = Tensor | readonly Container[] | { readonly [name: string]: Container };

/**
 * One tensor of a container with the path that leads to it, such as `encoder.0.state`; the path of
 * a bare tensor is empty.
 */
export interface Leaf {
  readonly path: string;
  /**
   * As the path, but different where the structures are: names that could be mistaken for more than
   * a name are quoted.
   */
  readonly label: string;
  readonly tensor: Tensor;
}

/**
 * Containers come from callers too, so there is an end to what is walked through for one of them.
 */
const MOST_LEAVES = 1024;
const DEEPEST = 32;
const LONGEST_LABELS = 32_768;

/** Who has shown so many parts, and none that is no container, has parts that hold one another. */
const MOST_PARTS = 16_384;

/**
 * True when the value holds tensors and nothing else.
 *
 * @throws InvalidBatchError when that cannot be read, or is more than a container may hold
 */
export function isContainer(value: unknown): value is Container {
  return typeof value === 'object' && value !== null && read(() => holdsTensors(value));
}

/** What the function reads of a caller's value; where that throws, the value is at fault. */
export function read<T>(of: () => T): T {
  try {
    return of();
  } catch (cause) {
    throw isServingError(cause)
      ? cause
      : new InvalidBatchError(`A value cannot be read: ${truncate(messageOf(cause))}`, { cause });
  }
}

/** Without recursion: values that are no containers may be as deep as they like. */
function holdsTensors(value: object): boolean {
  if (isTensor(value)) {
    return true;
  }
  const outer = partsIn(value);
  // Most plain values show by their first part that they are none.
  if (typeof outer[0] !== 'object' || outer[0] === null) {
    return false;
  }
  const open: Iterator<unknown>[] = [outer.values()];
  let leaves = 0;
  let deepest = 1;
  for (let parts = 0; open.length > 0; parts++) {
    const { done, value: part } = open.at(-1)!.next() as IteratorResult<unknown, undefined>;
    if (done) {
      open.pop();
    } else if (isTensor(part)) {
      leaves++;
    } else {
      const inner = partsIn(part);
      if (inner.length === 0) {
        return false;
      }
      open.push(inner.values());
      deepest = Math.max(deepest, open.length);
    }
    if (parts > MOST_PARTS) {
      throw new InvalidBatchError(
        `A value has more than ${MOST_PARTS} parts and no end of them; does it hold itself?`,
      );
    }
  }
  if (leaves > MOST_LEAVES || deepest > DEEPEST) {
    throw new InvalidBatchError(
      `${leaves} tensors, ${deepest} levels deep, are more than one item may hold: at most ` +
        `${MOST_LEAVES} and ${DEEPEST}; ` +
        'stack or concatenate the rows of many items to a Batch',
    );
  }
  return true;
}

/** What a list or a plain object holds; nothing of anything else. */
function partsIn(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : isPlainObject(value) ? Object.values(value as object) : [];
}

/** The leaves in a stable order: names sorted, tuples as they stand. */
export function leavesOf(container: Container): Leaf[] {
  const leaves: Leaf[] = [];
  mapLeaves(container, (leaf) => {
    leaves.push(leaf);
    return leaf.tensor;
  });
  return leaves;
}

/** The same structure with other leaves, given in the order of {@link leavesOf}. */
export function withLeaves(structure: Container, leaves: readonly unknown[]): Container {
  const next = leaves.values();
  return mapLeaves(structure, () => next.next().value);
}

/** The same structure with what the function makes of each leaf; every part is read once. */
export function mapLeaves(container: Container, map: (leaf: Leaf) => unknown): Container {
  let characters = 0;
  const mapped = (
    part: Container,
    path: string | undefined,
    label: string | undefined,
  ): unknown => {
    if (isTensor(part)) {
      characters += label?.length ?? 0;
      if (characters > LONGEST_LABELS) {
        throw new InvalidBatchError(
          `The names of an item's tensors are too long: together at most ${LONGEST_LABELS} ` +
            'characters',
        );
      }
      return map({ path: path ?? '', label: label ?? '', tensor: part });
    }
    const isTuple = Array.isArray(part);
    const parts = partsOf(part).map(([name, inner]) => {
      const quoted = isTuple || PLAIN_NAME.test(name) ? name : JSON.stringify(name);
      const innerPath = path === undefined ? name : `${path}.${name}`;
      return [
        name,
        mapped(inner, innerPath, label === undefined ? quoted : `${label}.${quoted}`),
      ] as const;
    });
    return isTuple ? parts.map(([, inner]) => inner) : Object.fromEntries(parts);
  };
  return mapped(container, undefined, undefined) as Container;
}

/** A name that no path and no index of a tuple looks like. */
const PLAIN_NAME = /^[\p{L}_$][\p{L}\p{N}_$-]*$/u;

function partsOf(container: Exclude<Container, Tensor>): [string, Container][] {
  if (Array.isArray(container)) {
    return Array.from(container as readonly Container[], (part, i) => [String(i), part]);
  }
  const parts: [string, Container][] = Object.entries(container);
  return parts.length < 2 ? parts : parts.toSorted(([a], [b]) => (a < b ? -1 : 1));
}

/** True for what `{}` makes, in whatever realm. */
export function isPlainObject(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) {
    return false;
  }
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === null || Object.getPrototypeOf(prototype) === null;
}

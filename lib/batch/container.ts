import type { Tensor } from 'onnxruntime-common';
import { isTensor } from './tensor.js';

/** A tensor, or a named map, tuple or nesting of tensors: batched leaf by leaf. */
export type Container = Tensor | readonly Container[] | { readonly [name: string]: Container };

/** One tensor of a container with the path that leads to it, such as `encoder.0.state`; the path of a bare tensor is empty. */
export interface Leaf {
  readonly path: string;
  /** As the path, but different where the structures are: names that could be mistaken for more than a name are quoted. */
  readonly label: string;
  readonly tensor: Tensor;
}

/** True when the value holds tensors and nothing else. */
export function isContainer(value: unknown): value is Container {
  if (typeof value !== 'object' || value === null) {
    return false;
  }
  if (isTensor(value)) {
    return true;
  }
  if (!Array.isArray(value) && !isPlainObject(value)) {
    return false;
  }
  const parts = Object.values(value);
  return parts.length > 0 && parts.every(isContainer);
}

/** The leaves in a stable order: names sorted, tuples as they stand. */
export function leavesOf(container: Container): Leaf[] {
  const leaves: Leaf[] = [];
  collectLeaves(container, undefined, undefined, leaves);
  return leaves;
}

function collectLeaves(container: Container, path: string | undefined, label: string | undefined, leaves: Leaf[]): void {
  if (isTensor(container)) {
    leaves.push({ path: path ?? '', label: label ?? '', tensor: container });
    return;
  }
  const isTuple = Array.isArray(container);
  for (const [name, part] of partsOf(container)) {
    const quoted = isTuple || PLAIN_NAME.test(name) ? name : JSON.stringify(name);
    collectLeaves(
      part,
      path === undefined ? name : `${path}.${name}`,
      label === undefined ? quoted : `${label}.${quoted}`,
      leaves,
    );
  }
}

/** A name that no path and no index of a tuple looks like. */
const PLAIN_NAME = /^[\p{L}_$][\p{L}\p{N}_$-]*$/u;

/** The same structure with other leaves, given in the order of {@link leavesOf}. */
export function withLeaves(structure: Container, leaves: readonly unknown[]): Container {
  const next = leaves.values();
  const build = (container: Container): unknown => {
    if (isTensor(container)) {
      return next.next().value;
    }
    const parts = partsOf(container).map(([name, part]) => [name, build(part)] as const);
    return Array.isArray(container) ? parts.map(([, part]) => part) : Object.fromEntries(parts);
  };
  return build(structure) as Container;
}

function partsOf(container: Exclude<Container, Tensor>): [string, Container][] {
  const parts: [string, Container][] = Object.entries(container);
  return Array.isArray(container) || parts.length < 2 ? parts : parts.toSorted(([a], [b]) => (a < b ? -1 : 1));
}

/** True for what `{}` makes, in whatever realm. */
export function isPlainObject(value: object): boolean {
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === null || Object.getPrototypeOf(prototype) === null;
}

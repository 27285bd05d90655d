import type { Block } from './element-types.js';
import { valueOf } from './tagged-values.js';
import type { WireLimits } from './limits.js';
import { FrameError } from './prelude.js';

/** Makes a value of its tree and blocks. */
export class ValueReader {
  private readonly taken = new Set<number>();
  private nodes = 1;

  constructor(
    private readonly blocks: readonly Block[],
    private readonly limits: WireLimits,
  ) {}

  read(node: unknown, depth: number): unknown {
    if (typeof node !== 'object' || node === null) {
      return node;
    }
    if (depth >= this.limits.depth) {
      throw new FrameError(`A value lies deeper than ${this.limits.depth} levels`);
    }
    return Array.isArray(node)
      ? this.list(node, depth + 1)
      : this.names(node as Record<string, unknown>, depth + 1);
  }

  /** Every block must be used. */
  end(): void {
    if (this.taken.size !== this.blocks.length) {
      throw new FrameError(`A value has ${this.blocks.length} blocks and names ${this.taken.size}`);
    }
  }

  private list(list: readonly unknown[], depth: number): readonly unknown[] {
    this.count(list.length);
    return list.some(isObject) ? list.map((node) => this.read(node, depth)) : list;
  }

  private names(node: Record<string, unknown>, depth: number): unknown {
    const names = Object.keys(node);
    this.count(names.length);
    const [first] = names;
    if (first !== undefined && names.length === 1 && isTag(first)) {
      return valueOf(
        [first, this.read(node[first], depth)],
        (index) => this.take(index),
        this.limits,
      );
    }
    const parts: Record<string, unknown> = {};
    for (const name of names) {
      if (name === '__proto__' || isTag(name)) {
        throw new FrameError('There is a name in the value that no part may have');
      }
      parts[name.startsWith('$') ? name.slice(1) : name] = this.read(node[name], depth);
    }
    return parts;
  }

  /**
   * A block is used once: otherwise a short frame could name a block so often that memory runs out.
   */
  private take(index: unknown): Block {
    const block = typeof index === 'number' ? this.blocks[index] : undefined;
    if (!block || this.taken.has(index as number)) {
      throw new FrameError('A value names a block that is not there, or not any more');
    }
    this.taken.add(index as number);
    return block;
  }

  private count(nodes: number): void {
    this.nodes += nodes;
    if (this.nodes > this.limits.nodes) {
      throw new FrameError(`A value has more than ${this.limits.nodes} parts`);
    }
  }
}

function isObject(value: unknown): value is object {
  return typeof value === 'object' && value !== null;
}

/** Whether a name in a tree is a tag. */
export function isTag(name: string): boolean {
  return name.startsWith('$') && !name.startsWith('$$');
}

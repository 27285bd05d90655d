import type { Members, NodeInfo } from './balancing.js';

/** Nodes that serve one model, and what they say of themselves. */
export class Fleet {
  private weights: readonly number[];
  private seq = 0;

  constructor(
    readonly serving: string,
    nodes: number,
    private readonly random: () => number,
  ) {
    this.weights = Array.from({ length: nodes }, () => this.newWeight());
  }

  /** The next beats of all nodes, of which a part has another weight than before. */
  beats(changed = 0): NodeInfo[] {
    this.seq++;
    this.weights = this.weights.map((weight) =>
      this.random() < changed ? this.newWeight() : weight,
    );
    return this.weights.map((weight, index) => this.beat(`node-${index}`, weight));
  }

  /** The members receive all of them. */
  announce(members: Members, changed = 0): void {
    this.beats(changed).forEach((info) => members.receive(info, this.seq));
  }

  private beat(id: string, weight: number): NodeInfo {
    const load = {
      activeCalls: 32,
      queued: Math.floor(100 * this.random()),
      batchTime: 5 + 10 * this.random(),
    };
    const served = {
      name: this.serving,
      weight,
      partitions: 2,
      ...load,
      idempotent: true,
      isReady: true,
    };
    return {
      id,
      epoch: 1,
      address: `${id}-1`,
      outages: 0,
      seq: this.seq,
      role: 'node',
      state: 'up',
      servings: [served],
    };
  }

  private newWeight(): number {
    return 1 + 3 * this.random();
  }
}

import { firstValueFrom, merge, Subject, timer } from 'rxjs';
import type { Address } from '../transport.js';
import { type Balance, type Balancer, balancerOf, type Candidate } from './balancer.js';
import type { Members } from './members.js';
import type { NodeInfo } from './node-info.js';

export interface NodeSelectorOptions {
  /** The address of this node. */
  readonly self: Address;
  readonly members: Members;
  readonly balance: Balance;
  /** The calls of this process to a node that have no answer yet. */
  readonly activeCalls: (node: Address) => number;
}

/** Selects the node for each call. */
export class NodeSelector {
  /** Whether the transport reaches other nodes. */
  isOnline = false;
  private readonly balancer: Balancer;
  private readonly changes = new Subject<void>();

  constructor(private readonly options: NodeSelectorOptions) {
    this.balancer = balancerOf(options.balance);
  }

  /** The known nodes except this one. */
  get others(): readonly NodeInfo[] {
    const { members, self } = this.options;
    return members.all.map(({ info }) => info).filter(({ address }) => address !== self);
  }

  /** The nodes that take calls of the serving. */
  candidates(serving: string): readonly Candidate[] {
    return this.options.members.candidates(serving).list;
  }

  /** The node for a call, or undefined when every candidate is excluded. */
  pick(serving: string, excluded: ReadonlySet<Address>): Candidate | undefined {
    const { members, activeCalls } = this.options;
    return this.balancer(members.candidates(serving), excluded, { serving, activeCalls });
  }

  /** Resolves when the candidates have changed, and after so many milliseconds at the latest. */
  async nextChange(milliseconds: number): Promise<void> {
    await firstValueFrom(merge(this.changes, timer(milliseconds)));
  }

  notifyChange(): void {
    this.changes.next();
  }

  /** Rejects every `nextChange` with the error, from now on. */
  close(error: Error): void {
    this.changes.error(error);
  }
}

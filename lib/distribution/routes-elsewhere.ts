import type { Owner } from './owners.js';
import type { Address } from './transport.js';
import type { Routes } from './tries.js';

/** The routes to all nodes but one. */
export class RoutesElsewhere implements Routes {
  constructor(
    private readonly routes: Routes,
    private readonly self: Address,
  ) {}

  get isOnline(): boolean {
    return this.routes.isOnline;
  }

  get others(): Routes['others'] {
    return this.routes.others;
  }

  pick(serving: string, excluded: ReadonlySet<Address>): Owner | undefined {
    return this.routes.pick(serving, new Set(excluded).add(this.self));
  }

  owners(serving: string): readonly Owner[] {
    return this.routes.owners(serving).filter(({ address }) => address !== this.self);
  }

  change(milliseconds: number): Promise<void> {
    return this.routes.change(milliseconds);
  }
}

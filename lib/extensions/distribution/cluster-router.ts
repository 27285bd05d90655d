import { UnknownServingError, type Serving } from '../../index.js';
import {
  type ClusterNode,
  type RemotePreprocess,
  type ServingRouter,
} from '../../doors/servings.js';
import { formatValue } from '../../doors/text.js';
import type { ExportedServings } from './calls/exported-servings.js';
import { type RemoteCallOptions, RemoteServing } from './calls/remote-serving.js';
import type { ClusterShutdown } from './cluster-shutdown.js';
import type { ResolvedDistribution } from './resolve-options.js';
import type { Address } from './transport.js';

export interface ClusterRouterOptions extends RemoteCallOptions {
  readonly self: Address;
  readonly localFirst: ResolvedDistribution['localFirst'];
  readonly remotes: ResolvedDistribution['remotes'];
  readonly exported: ExportedServings;
  readonly shutdown: ClusterShutdown;
  readonly nodes: () => readonly ClusterNode[];
}

export class ClusterRouter implements ServingRouter {
  private readonly handles = new Map<string, RemoteServing>();

  constructor(private readonly options: ClusterRouterOptions) {}

  remote(name: string, preprocess?: RemotePreprocess): Serving {
    if (typeof name !== 'string') {
      throw new UnknownServingError(`There is no serving ${formatValue(name)}`);
    }
    const { handles, options } = this;
    const { exported, remotes, selector } = options;
    if (preprocess) {
      return new RemoteServing(name, options, preprocess);
    }
    const known = handles.get(name);
    if (known) {
      return known;
    }
    const handle = new RemoteServing(
      name,
      options,
      remotes.get(name) ?? exported.preprocessOf(name),
    );
    // Clients may send any number of unknown names.
    if (selector.candidates(name).length > 0 || remotes.has(name)) {
      handles.set(name, handle);
    }
    return handle;
  }

  isRemote(serving: Serving | undefined): boolean {
    return serving instanceof RemoteServing;
  }

  route(name: string, local: Serving | undefined, preprocess?: RemotePreprocess): Serving {
    if (!local) {
      return this.remote(name, preprocess);
    }
    return this.isSaturated(local)
      ? new RemoteServing(name, this.options, preprocess, this.options.self)
      : local;
  }

  nodes(): readonly ClusterNode[] {
    return this.options.nodes();
  }

  answered(): Promise<void> {
    return this.options.shutdown.answered();
  }

  end(): void {
    this.handles.forEach((handle) => handle.end());
  }

  private isSaturated({ name, queued, local }: Serving): boolean {
    const { localFirst, selector, self } = this.options;
    return (
      localFirst === 'unless-saturated' &&
      local !== undefined &&
      queued >= local.distribution.saturation &&
      selector.candidates(name).some(({ address }) => address !== self)
    );
  }
}

import type { Serving } from './serving.js';

/** Changes an input before it leaves for another node. */
export type RemotePreprocess = (input: unknown) => unknown;

/** The injection token of the one {@link ServingRouter} that an application may have. */
export const SERVING_ROUTER = Symbol('serving router');

/** The part of a cluster that the core calls; there is none without `ServingClusterModule`. */
export interface ServingRouter {
  /**
   * The handle of a serving that runs on other nodes.
   *
   * @throws UnknownServingError for a name that is not a string
   */
  remote(name: string, preprocess?: RemotePreprocess): Serving;
  /** The target of a call by name; `local` is the application's own serving of that name. */
  route(name: string, local: Serving | undefined, preprocess?: RemotePreprocess): Serving;
  isRemote(serving: Serving | undefined): boolean;
  /** Resolves when the calls of other nodes are answered, or at the limit of shutdown. */
  answered(): Promise<void>;
}

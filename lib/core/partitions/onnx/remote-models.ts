import { InvalidServingError } from '../../errors.js';

/** A model that is fetched when its serving starts. */
export interface RemoteModel {
  /** Its address, without secrets. */
  readonly name: string;
  /**
   * Fetches it and the files that it refers to, unless they are here already; returns its path.
   *
   * @throws ServingLoadError
   */
  fetch(fetching: Fetching): Promise<string>;
}

export interface Fetching {
  /** The line continues "Serving ...". */
  readonly log: (line: string) => void;
  /** Aborts when the serving closes. */
  readonly signal: AbortSignal;
}

/**
 * @param owner the serving, for errors
 * @throws InvalidServingError
 */
type ReadAddress = (
  owner: string,
  address: string,
  sha256: string | false | undefined,
) => RemoteModel;

let readAddress: ReadAddress | undefined;

/** Called once, by the extension that fetches models. */
export function readAddressesWith(read: ReadAddress): void {
  readAddress = read;
}

export function isRemote(file: string | URL): boolean {
  return /^(hf|https?):/i.test(String(file));
}

/**
 * Only if {@link isRemote} is true for the address.
 *
 * @throws InvalidServingError for an address that is no model's, and if no extension fetches models
 */
export const remoteModelOf: ReadAddress = (owner, address, sha256) => {
  if (!readAddress) {
    throw new InvalidServingError(
      `${owner}: nothing here fetches the model ${address}; import "nestjs-serving", which does`,
    );
  }
  return readAddress(owner, address, sha256);
};

import { InvalidServingError } from '../../errors.js';

/** A model that is fetched when its serving starts. */
export interface RemoteModel {
  /** Its name in logs and errors, such as its address, without secrets. */
  readonly name: string;
  /**
   * Fetches it and the files that it refers to, unless they are here already; returns its path.
   *
   * @returns the path of the ONNX file, or its bytes
   * @throws ServingLoadError
   */
  fetch(fetching: Fetching): Promise<string | Uint8Array>;
}

/** A repository of models, such as one of the Hugging Face Hub. */
export interface RemoteRepository {
  /** Its address. */
  readonly name: string;
  /**
   * Fetches a file, and the files that it refers to, unless they are here already. All files are of
   * the commit that the first one was.
   *
   * @returns the file's path; undefined if the repository doesn't have it
   * @throws ServingLoadError
   */
  fetch(path: string, fetching: Fetching): Promise<string | undefined>;
}

/** What a serving gives to code that fetches its model. */
export interface Fetching {
  /** Logs a line that continues "Serving ...". */
  readonly log: (line: string) => void;
  /** Logs a warning that continues "Serving ...". */
  readonly warn: (line: string) => void;
  /** Aborts when the serving closes. */
  readonly signal: AbortSignal;
}

/** Reads addresses. `owner` is the serving, for errors. */
interface AddressReader {
  /** @throws InvalidServingError */
  model(owner: string, address: string, sha256: string | false | undefined): RemoteModel;
  /** @throws InvalidServingError */
  repository(owner: string, address: string): RemoteRepository;
}

let reader: AddressReader | undefined;

/** Called once, by the extension that fetches models. */
export function readAddressesWith(own: AddressReader): void {
  reader = own;
}

/** True for an address rather than a local file. */
export function isRemote(file: unknown): file is string | URL {
  return isPath(file) && /^(hf|https?):/i.test(String(file));
}

/** True for a path or an address. */
export function isPath(file: unknown): file is string | URL {
  return typeof file === 'string' || file instanceof URL;
}

/**
 * Only if {@link isRemote} is true for the address.
 *
 * @throws InvalidServingError for an address that is no model's, and if no extension fetches models
 */
export const remoteModelOf: AddressReader['model'] = (owner, address, sha256) =>
  readerFor(owner, address).model(owner, address, sha256);

/**
 * The repository `hf:org/repo` or `hf:org/repo@revision`.
 *
 * @throws InvalidServingError for another address, and if no extension fetches models
 */
export const remoteRepositoryOf: AddressReader['repository'] = (owner, address) =>
  readerFor(owner, address).repository(owner, address);

function readerFor(owner: string, address: string): AddressReader {
  if (!reader) {
    throw new InvalidServingError(
      `${owner}: nothing here fetches the model ${address}; import "nestjs-serving", which does`,
    );
  }
  return reader;
}

/** True for what fetches its model by itself. */
export function isRemoteModel(value: unknown): value is RemoteModel {
  return (
    typeof value === 'object' &&
    value !== null &&
    'fetch' in value &&
    typeof value.fetch === 'function'
  );
}

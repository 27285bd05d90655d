import { InvalidServingError } from '../../errors.js';
import type { PartitionOptions } from '../batch-function.js';
import type { DeclaredAxes, ServingSignature } from './model-signature.js';

/** A model that is fetched when a version of its serving loads. */
export interface RemoteModel<Facts = unknown> {
  /** Name in logs and errors, without secrets, such as its address. */
  readonly name: string;
  /**
   * Fetches the model and the files that it refers to, unless they are here already. Called once
   * for each version, so what it reads in addition belongs in the result, not in a variable.
   *
   * @returns the path of the ONNX file, or its bytes; or these with the version's facts
   * @throws ServingLoadError
   */
  fetch(fetching: Fetching): Promise<string | Uint8Array | FetchedFile<Facts>>;
  /**
   * The model in its place after `reload({ model })`.
   *
   * @default the given model replaces this one, and has no facts
   * @throws InvalidServingError for a model that can't replace it
   */
  moved?(model: unknown): RemoteModel<Facts>;
}

/** A file with its required SHA-256, a model's bytes, or its address. */
export type ModelPlace =
  { readonly file: string; readonly sha256?: string | undefined } | Uint8Array | RemoteModel;

/** A fetched ONNX file with its version's facts. */
export interface FetchedFile<Facts = unknown> extends FetchedFacts<Facts> {
  /** The path of the ONNX file, or its bytes. */
  readonly file: string | Uint8Array;
  /**
   * Checks, when a version loads, that the facts describe the loaded model.
   *
   * @returns axes on which rows may differ in length, by input and output; undefined for the
   * definition's
   * @throws InvalidServingError for another model: the version then doesn't load
   */
  accept?(signature: ServingSignature): AcceptedAxes | undefined;
}

/** Facts that one version of a serving read, such as labels. */
export interface FetchedFacts<Facts = unknown> {
  /** Given to `preprocess`, `postprocess` and `postprocessStream` of this version's calls. */
  readonly facts?: Facts;
  /**
   * A text that differs if the facts differ, such as a hash. With it, versions with the same file
   * and facts share a cache's replies.
   *
   * @default versions with different labels share none
   */
  readonly content?: string;
}

/** Axes by input or output name. */
export interface AcceptedAxes {
  /** Axes of inputs. */
  readonly inputs: DeclaredAxes;
  /** Axes of outputs. */
  readonly outputs: DeclaredAxes;
}

/** Files of a module's threads or processes, fetched when a version loads. */
export interface RemoteFiles<Facts = unknown> {
  /**
   * Fetches options to add to each partition's, and the version's facts.
   *
   * @throws ServingLoadError
   */
  fetch(fetching: Fetching): Promise<FetchedFiles<Facts>>;
  /** See {@link RemoteModel}. */
  moved?(model: unknown): RemoteFiles<Facts>;
}

/** Fetched options for partitions. */
export interface FetchedFiles<Facts = unknown> extends FetchedFacts<Facts> {
  /** Copied to each thread or process. */
  readonly options: PartitionOptions;
  /**
   * Opens what all threads share; not called for processes.
   *
   * @param partitions their own options
   */
  readonly share?: (
    partitions: readonly PartitionOptions[],
  ) => Promise<SharedByThreads | undefined>;
}

export interface SharedByThreads {
  /** Copied to each thread. */
  readonly options: PartitionOptions;
  /** Called once, when the threads have ended. */
  close(): Promise<void>;
}

/** A repository of models, such as one of the Hugging Face Hub. */
export interface RemoteRepository {
  /** Its address. */
  readonly name: string;
  /**
   * Fetches a file, and the files that it refers to, unless they are here already. All files are of
   * the first one's commit.
   *
   * @returns the file's path; undefined if the repository doesn't have it
   * @throws ServingLoadError
   */
  fetch(path: string, fetching: Fetching): Promise<string | undefined>;
}

/** A serving's tools for code that fetches its model. */
export interface Fetching {
  /** Logs a line that continues "Serving ...". */
  readonly log: (line: string) => void;
  /** Logs a warning that continues "Serving ...". */
  readonly warn: (line: string) => void;
  /** Aborts when the serving closes. */
  readonly signal: AbortSignal;
}

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

/** True for an address, not a local file. */
export function isRemote(file: unknown): file is string | URL {
  return isPath(file) && /^(hf|https?):/i.test(String(file));
}

export function isPath(file: unknown): file is string | URL {
  return typeof file === 'string' || file instanceof URL;
}

/**
 * @throws InvalidServingError for an address that is no model's, and if no extension fetches models
 */
export const remoteModelOf: AddressReader['model'] = (owner, address, sha256) =>
  readerFor(owner, address).model(owner, address, sha256);

/**
 * Reads `hf:org/repo` or `hf:org/repo@revision`.
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

export function isRemoteModel(value: unknown): value is RemoteModel {
  return (
    typeof value === 'object' &&
    value !== null &&
    'fetch' in value &&
    typeof value.fetch === 'function'
  );
}

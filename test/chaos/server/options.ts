import type { ServingDefinition } from 'nestjs-serving';

/** What of a definition a scenario may want to be otherwise. */
type Changes = Pick<ServingDefinition, 'batchSize' | 'batchTimeout' | 'recovery' | 'shutdown'>;

/** The application that a scenario asks for; it has the servings that are named here. */
export interface ServerOptions {
  readonly platform?: 'express' | 'fastify';
  /**
   * What SIGTERM does: `exit`: Nest's shutdown hooks, which exit; `close`: `app.close()`, after
   * which the process ends by itself.
   */
  readonly ending?: 'exit' | 'close';
  /** Serves the Open Inference Protocol, also by gRPC, and is a node of a cluster. */
  readonly doors?: Doors;
  /** The model of the digits sample. */
  readonly digits?: Changes;
  /** Numbers to be squared, in a file of its own. */
  readonly squares?: Changes & {
    readonly worker?: SquaresOptions;
    readonly warmUp?: readonly SquareRow[];
  };
  /** Streams of letters, made by generators in a file of its own. */
  readonly letters?: Changes & { readonly worker?: LettersOptions };
}

export interface SquaresOptions {
  /** Milliseconds that a batch takes. */
  readonly delay?: number;
  /** Where each batch writes down its rows before it does anything else. */
  readonly diary?: string;
  /** While there is such a file, every batch ends its process. */
  readonly curse?: string;
  /** While there is such a file, batches with a row that says so wait. */
  readonly gate?: string;
}

export interface LettersOptions {
  /** Where each generator writes down that it begins and that it ends. */
  readonly diary?: string;
}

/** The ports beside that of HTTP. */
export interface Doors {
  readonly grpc: number;
  readonly cluster: number;
  /** The secret of the cluster. */
  readonly secret: string;
}

/** A row of the squares. */
export interface SquareRow {
  readonly id: number;
  /** What it does to the process of its batch. */
  readonly fault?: 'aborts' | 'fills its memory';
  /** Waits for the gate. */
  readonly held?: boolean;
}

/** What a stream is to have. */
export interface LettersRow {
  readonly id: number;
  /** Without an end where there is no number. */
  readonly steps?: number;
  /** The length of each of its texts. */
  readonly length: number;
}

/** What the application says of itself while it lives. */
export interface Admin {
  /** Requests of calls that have come in. */
  readonly accepted: number;
  /** Calls that have come to a serving, by its name. */
  readonly calls: Readonly<Record<string, number>>;
  /** Those that have ended with an error, by its code. */
  readonly failures: Readonly<Record<string, number>>;
  /** Rows that have run again, or were to. */
  readonly retried: number;
  /** Rows that wait, by serving. */
  readonly queued: Readonly<Record<string, number>>;
  readonly restarts: number;
  /** The state of each partition. */
  readonly partitions: readonly string[];
  /** Bytes in use, in JavaScript and beside it. */
  readonly memory: number;
  /** Open files, sockets among them. */
  readonly files: number;
}

/** The last that it says. */
export interface LastWords {
  readonly accepted: number;
}

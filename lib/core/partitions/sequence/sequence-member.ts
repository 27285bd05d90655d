import type { SequenceModel } from './sequence-model.js';

/** A row of one caller. */
export interface SequenceRow {
  readonly input: unknown;
  /** True if a caller still waits for it. */
  isWaiting(): boolean;
  /** Receives a value, or the Error that the row ends with. */
  emit(value: unknown): void;
  /** The hooks that its caller asks for. */
  readonly hooks: readonly string[];
  /** Receives a hook's value. */
  hook(name: string, value: unknown): void;
  /** Resolves once the reader has room for another value; undefined without a limit. */
  room?(): Promise<void> | undefined;
}

/** Why a row ends without its last value. */
export interface Failure {
  readonly error: unknown;
}

/** A row that was paused this often is not paused again: it starts when it is the oldest. */
const MOST_PAUSES = 4;

/** A row in a sequence's loop. */
export class SequenceMember {
  /** Its state, while it is present. */
  started: { readonly state: unknown } | undefined;
  /** Its values so far. */
  count = 0;
  /** The values, kept where the row may be paused. */
  readonly values: unknown[] = [];
  /** How often it was paused. */
  pauses = 0;
  /** Its cost, and its cost with the next value. */
  cost = 0;
  costAfter = 0;

  /** Why it fails after the step that runs: a hook that could not be sent. */
  fault: Failure | undefined;

  constructor(
    readonly model: SequenceModel<unknown, unknown, unknown>,
    readonly row: SequenceRow,
    /** Rows that arrived before. */
    readonly age: number,
    readonly resolve: () => void,
    readonly reject: (error: unknown) => void,
  ) {}

  /** True if it isn't paused any more. */
  get isProtected(): boolean {
    return this.pauses >= MOST_PAUSES;
  }
}

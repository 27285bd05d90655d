/** What the batch function said of one batch, and which rows of a call were in it. */
export interface PartMetadata {
  /** The place of the first of these rows in the call. */
  readonly offset: number;
  /** How many they are. */
  readonly rows: number;
  readonly metadata: unknown;
}

/** What the batch function said of the batches in which the rows of a call ran. */
export type CallMetadata =
  | {
      /** All rows of the call ran in one batch. */
      readonly isSplit: false;
      /** What the batch function said of it. */
      readonly metadata: unknown;
    }
  | {
      /** The rows of the call ran in several batches. */
      readonly isSplit: true;
      /** What the batch function said of each of them, in the order of the call's rows. */
      readonly metadata: readonly PartMetadata[];
    };

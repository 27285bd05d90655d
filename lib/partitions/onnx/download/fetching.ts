/** The serving that a model is fetched for. */
export interface Fetching {
  /** Logs the progress; the line continues "Serving ...". */
  readonly log: (line: string) => void;
  /** Aborts when the serving closes. */
  readonly signal: AbortSignal;
}

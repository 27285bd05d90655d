/** Takes the lines that servings log. Nest's `Logger` is one. */
export interface ServingLog {
  log(line: string): void;
  warn(line: string): void;
  error(line: string): void;
}

/** Without Nest, lines go to the console. */
let target: ServingLog = console;

/** Sends all servings' lines of this process to another log. */
export function logTo(other: ServingLog): void {
  target = other;
}

/** The log of all servings in this process. */
export const log: ServingLog = {
  log: (line) => target.log(line),
  warn: (line) => target.warn(line),
  error: (line) => target.error(line),
};

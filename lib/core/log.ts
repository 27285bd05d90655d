/** Takes servings' log lines. Nest's `Logger` is one. */
export interface ServingLog {
  log(line: string): void;
  warn(line: string): void;
  error(line: string): void;
}

/** Without Nest, lines go to the console. */
let target: ServingLog = console;

/** Sends all servings' lines in this process to another log. */
export function logTo(other: ServingLog): void {
  target = other;
}

export const log: ServingLog = {
  log: (line) => target.log(line),
  warn: (line) => target.warn(line),
  error: (line) => target.error(line),
};

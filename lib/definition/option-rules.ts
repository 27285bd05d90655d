import { InvalidServingError } from '../errors.js';
import { formatValue } from '../format.js';

/** The allowed values of an option. */
export interface Rule {
  readonly check: (value: unknown) => boolean;
  readonly allowed: string;
}

/** The rules of options, by name. */
export type Rules = Readonly<Record<string, Rule>>;

/** setTimeout fires at once for a longer delay. */
export const LONGEST_DELAY = 2 ** 31 - 1;

export function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

export const whole = (least: number, most: number): Rule => ({
  check: (value) =>
    Number.isInteger(value) && (value as number) >= least && (value as number) <= most,
  allowed: `a whole number from ${least} to ${most}`,
});
export const milliseconds = (least: number, most = LONGEST_DELAY): Rule => ({
  check: (value) => typeof value === 'number' && value >= least && value <= most,
  allowed: `milliseconds from ${least} to ${most}`,
});
export const delay = milliseconds(0);
export const aFunction: Rule = {
  check: (value) => typeof value === 'function',
  allowed: 'a function',
};

/** The default options of every batcher. */
export const BATCHING_DEFAULTS = { batchSize: 32, batchTimeout: 0, maxQueue: 10_000 } as const;

/** Milliseconds of waiting that outweigh one level of priority. */
export const DEFAULT_AGEING = 1000;

export const batching: Rules = {
  batchSize: whole(1, 2 ** 20),
  batchTimeout: delay,
  maxQueue: whole(1, Number.MAX_SAFE_INTEGER),
};

/** The options of a batcher with their defaults. */
export function batchingOf(
  options: Partial<Record<keyof typeof BATCHING_DEFAULTS, number | undefined>>,
): Record<keyof typeof BATCHING_DEFAULTS, number> {
  const { batchSize, batchTimeout, maxQueue } = BATCHING_DEFAULTS;
  return {
    batchSize: options.batchSize ?? batchSize,
    batchTimeout: options.batchTimeout ?? batchTimeout,
    maxQueue: options.maxQueue ?? maxQueue,
  };
}

/** The shutdown options of a serving or a batched method. */
export function shutdownOf(options: Partial<ShutdownOptions>): ShutdownOptions {
  return {
    drainOnShutdown: options.drainOnShutdown ?? true,
    drainTimeout: options.drainTimeout ?? 30_000,
  };
}

/** @throws InvalidServingError naming the owner, the option, its value, and the allowed values */
export function checkOptions(owner: string, options: object, rules: Rules): void {
  for (const [option, value] of Object.entries(options)) {
    const rule = Object.hasOwn(rules, option) ? rules[option] : undefined;
    if (!rule) {
      const known = Object.keys(rules).toSorted().join(', ');
      throw new InvalidServingError(
        `${owner}: unknown option "${option}" (${formatValue(value)}); known are ${known}`,
      );
    }
    if ((value !== undefined || option === 'name') && !rule.check(value)) {
      throw new InvalidServingError(
        `${owner}: option "${option}" is ${formatValue(value)}; allowed is ${rule.allowed}`,
      );
    }
  }
}

/** @throws InvalidServingError for batches larger than the queue */
export function checkRoom(owner: string, batchSize: number, maxQueue: number): void {
  if (batchSize > maxQueue) {
    throw new InvalidServingError(
      `${owner}: batchSize ${batchSize} is more than maxQueue ${maxQueue}, so no batch could ` +
        'ever fill; lower the one or raise the other',
    );
  }
}

/** The options of shutdown. */
export interface ShutdownOptions {
  /** Whether queued calls run, or fail as closed at once. */
  readonly drainOnShutdown: boolean;
  /**
   * Milliseconds from the beginning of shutdown after which every call that is left fails as
   * closed.
   */
  readonly drainTimeout: number;
}

import { InvalidServingError } from '../errors.js';
import { closestName, formatValue } from '../format.js';

export interface Rule {
  readonly check: (value: unknown) => boolean;
  readonly allowed: string;
  readonly isRequired?: boolean;
  /** True for a value that no error may show. */
  readonly isSecret?: boolean;
  readonly group?: Rules;
  /** Allows other values in place of the group. */
  readonly other?: Rule | undefined;
  /** Rules that are checked elsewhere, to find an option that stands in the wrong place. */
  readonly inside?: Rules;
}

export type Rules = Readonly<Record<string, Rule>>;

/** setTimeout fires immediately for a longer delay. */
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
export const oneOf = (...values: readonly unknown[]): Rule => ({
  check: (value) => values.includes(value),
  allowed: values.map(formatValue).join(' or '),
});
export const flag: Rule = {
  check: (value) => typeof value === 'boolean',
  allowed: 'true or false',
};
export const share: Rule = {
  check: (value) => typeof value === 'number' && value >= 0 && value <= 1,
  allowed: 'a number from 0 to 1',
};

const aList: Rule = { check: Array.isArray, allowed: 'a list' };

/** Options of a module's `forRootAsync`, without those of its own beside the factory. */
const ofFactories: Rules = {
  useFactory: aFunction,
  useClass: aFunction,
  useExisting: { check: () => true, allowed: 'an injection token' },
  inject: aList,
  provideInjectionTokensFrom: aList,
  imports: { check: Array.isArray, allowed: 'a list of modules' },
};

/** @throws InvalidServingError, also unless exactly one of them makes the module's options */
export function checkAsyncOptions(owner: string, options: object, own: Rules): void {
  checkOptions(owner, options, { ...ofFactories, ...own });
  const makers = ['useFactory', 'useClass', 'useExisting'];
  const given = makers.filter((name) => name in options);
  if (given.length !== 1) {
    throw new InvalidServingError(
      `${owner} has ${given.join(' and ') || 'nothing that makes its options'}; give one of ` +
        makers.join(', '),
    );
  }
}

export const DEFAULT_BATCH_SIZE = 32;
export const DEFAULT_QUEUE_ROWS = 10_000;
export const DEFAULT_VERSION = '1';
export const DEFAULT_AGEING = 1000;

/** The options that can differ by key. */
export const perKey: Rules = {
  batchSize: whole(1, 2 ** 20),
  batchTimeout: delay,
};

export function groupOf(group: Rules, other?: Rule): Rule {
  const object = `an object of ${Object.keys(group).join(', ')}`;
  return {
    check: (value) => isRecord(value) || (other?.check(value) ?? false),
    allowed: other ? `${other.allowed}, or ${object}` : object,
    group,
    other,
  };
}

/** Adds rules; `group.name` is added to a group, if there is one of this name. */
export function withRules(rules: Rules, more: Rules): Rules {
  const all: Record<string, Rule> = { ...rules };
  for (const [path, rule] of Object.entries(more)) {
    const [name, rest] = path.split('.') as [string, string | undefined];
    const into = all[name];
    if (rest === undefined) {
      all[name] = rule;
    } else if (into?.group) {
      all[name] = groupOf({ ...into.group, [rest]: rule }, into.other);
    }
  }
  return all;
}

export const shutdown = groupOf({ drain: flag, timeout: delay });

/** @throws InvalidServingError naming the owner, the option, its value, and the allowed values */
export function checkOptions(owner: string, options: object, rules: Rules, group = ''): void {
  checkObject(owner, options, rules);
  const required = Object.keys(rules).filter((name) => rules[name]!.isRequired);
  for (const name of new Set([...required, ...Object.keys(options)])) {
    const value = (options as Record<string, unknown>)[name];
    const rule = Object.hasOwn(rules, name) ? rules[name] : undefined;
    const option = group + name;
    if (!rule) {
      const known = Object.keys(rules).toSorted();
      const meant = placeOf(name, rules) ?? closestName(name, known);
      throw new InvalidServingError(
        `${owner}: unknown option "${option}"${rules[meant ?? '']?.isSecret ? '' : ` (${formatValue(value)})`}; ` +
          (meant === undefined ? '' : `did you mean "${group}${meant}"? `) +
          `known are ${known.join(', ')}`,
      );
    }
    if ((value !== undefined || rule.isRequired) && !rule.check(value)) {
      throw new InvalidServingError(
        `${owner}: option "${option}" ${rule.isSecret && value !== undefined ? 'cannot be used' : `is ${formatValue(value)}`}; ` +
          `allowed is ${rule.allowed}`,
      );
    }
    if (rule.group && isRecord(value)) {
      checkOptions(owner, value, rule.group, `${option}.`);
    }
  }
}

/** @throws InvalidServingError for what is no object, or a promise of one */
export function checkObject(owner: string, options: unknown, rules: Rules): void {
  if (!isRecord(options) || options instanceof Promise) {
    const given = Array.isArray(options)
      ? 'a list'
      : options instanceof Promise
        ? 'a promise'
        : formatValue(options);
    throw new InvalidServingError(
      `${owner} was given ${given}, and takes an object with ${Object.keys(rules).toSorted().join(', ')}`,
    );
  }
}

/** The path of the option that has this name in a group, such as `queue.maxRows`. */
function placeOf(option: string, rules: Rules): string | undefined {
  for (const [name, { group, inside = group ?? {} }] of Object.entries(rules)) {
    const found = Object.hasOwn(inside, option) ? option : placeOf(option, inside);
    if (found !== undefined) {
      return `${name}.${found}`;
    }
  }
  return undefined;
}

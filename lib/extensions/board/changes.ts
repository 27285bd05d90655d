import { InvalidInputError, UnknownServingError, type Serving } from '../../index.js';
import { checkOptions, isRecord, type Rule, type Rules, formatValue } from '../../internal.js';

interface Change {
  readonly serving: string;
  readonly change: keyof typeof changes;
  /** All keys by default. */
  readonly key?: string;
  /** The new batch size or batch timeout. */
  readonly value?: number;
  /** For `reload`, the new version's label. */
  readonly version?: string;
}

const changes = {
  pause: (serving: Serving) => serving.pause(),
  drain: (serving: Serving) => serving.drain(),
  resume: (serving: Serving) => serving.resume(),
  batchSize: (serving: Serving, { value, key }: Change) =>
    serving.setBatchSize(required('value', value), key),
  batchTimeout: (serving: Serving, { value, key }: Change) =>
    serving.setBatchTimeout(required('value', value), key),
  reload: async (serving: Serving, { version }: Change) => {
    await serving.reload({ ...(version !== undefined && { version }) });
  },
  promote: (serving: Serving, { version }: Change) =>
    serving.version(required('version', version)).promote(),
  rollback: (serving: Serving, { version }: Change) =>
    serving.version(required('version', version)).rollback(),
};

const text: Rule = {
  check: (value) => typeof value === 'string' && value !== '',
  allowed: 'a string that is not empty',
};
const rules: Rules = {
  serving: { ...text, isRequired: true },
  change: {
    check: (value) => typeof value === 'string' && Object.hasOwn(changes, value),
    allowed: Object.keys(changes).join(', '),
    isRequired: true,
  },
  key: { ...text, check: (value) => typeof value === 'string' },
  value: { check: (value) => typeof value === 'number', allowed: 'a number' },
  version: text,
};

/**
 * Returns a description of the change, for the log.
 *
 * @throws InvalidInputError for an invalid body, UnknownServingError, and errors of the serving
 */
export async function makeChange(
  body: unknown,
  servings: Iterable<readonly [string, Serving]>,
): Promise<string> {
  const change = changeOf(body);
  const [, serving] = [...servings].find(([name]) => name === change.serving) ?? [];
  if (!serving) {
    throw new UnknownServingError(`There is no serving ${formatValue(change.serving)}`);
  }
  await changes[change.change](serving, change);
  const { serving: name, change: what, ...rest } = change;
  return `Serving "${name}": ${what} ${JSON.stringify(rest)}`;
}

function changeOf(body: unknown): Change {
  if (!isRecord(body)) {
    throw new InvalidInputError(
      `The body of a change is ${formatValue(body)}; send JSON: { "serving": "...", "change": "pause" }`,
    );
  }
  try {
    checkOptions('The change', body, rules);
  } catch (cause) {
    throw new InvalidInputError((cause as Error).message, { cause });
  }
  return body as unknown as Change;
}

function required<Value>(name: string, value: Value | undefined): Value {
  if (value === undefined) {
    throw new InvalidInputError(`The change has no "${name}"`);
  }
  return value;
}

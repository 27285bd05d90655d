import { isPlainObject } from '../../batch/container.js';
import { InvalidInputError } from '../../errors.js';
import { typeName, formatValue } from '../../format.js';
import type { StreamOptions } from '../../context/call-options.js';
import type { Method } from '../calls/exported-serving.js';
import type { WireLimits } from '../wire/limits.js';
import { readJson } from './json-reader.js';
import type { TensorForm } from './json-writer.js';

/** The call of a client that is no node. */
export interface JsonCall {
  readonly method: Method;
  readonly input: unknown;
  readonly options: Pick<
    StreamOptions<string>,
    'timeout' | 'priority' | 'tenant' | 'key' | 'hooks'
  >;
  readonly form: TensorForm;
}

/**
 * The call of a message: `{ input, method, timeout, priority, tenant, key, hooks, tensors }`, of
 * which only `input` is required.
 *
 * @throws InvalidInputError naming the invalid field
 */
export function readJsonCall(message: unknown, limits: WireLimits): JsonCall {
  if (!isPlainObject(message) || Array.isArray(message)) {
    throw new InvalidInputError(
      `The message is ${typeName(message)}; give an object with at least the field "input"`,
    );
  }
  const fields = message as Record<string, unknown>;
  const unknown = Object.keys(fields).find((name) => !names.includes(name));
  if (unknown !== undefined) {
    throw new InvalidInputError(
      `The message has a field ${formatValue(unknown)}; known are ${names.join(', ')}`,
    );
  }
  if (!Object.hasOwn(fields, 'input')) {
    throw new InvalidInputError('The message has no field "input"');
  }
  const method =
    fieldIn(fields, 'method', isMethod, '"batchedRun", "run" or "stream"') ?? 'batchedRun';
  const hooks = fieldIn(fields, 'hooks', isStrings, 'a list of names') ?? [];
  if (hooks.length > 0 && method !== 'stream') {
    throw new InvalidInputError(
      `The message has hooks, and method ${formatValue(method)}; hooks come in what "stream" gives`,
    );
  }
  const options = {
    timeout: fieldIn(fields, 'timeout', isNumber, 'a number of milliseconds'),
    priority: fieldIn(fields, 'priority', isNumber, 'a whole number'),
    tenant: fieldIn(fields, 'tenant', isString, 'a string'),
    key: fieldIn(fields, 'key', isString, 'a string'),
    ...(method === 'stream' && { hooks }),
  };
  const form = fieldIn(fields, 'tensors', isForm, '"base64" or "list"') ?? 'base64';
  return { method, input: readJson(fields['input'], limits, 'input'), options, form };
}

const names: readonly string[] = [
  'input',
  'method',
  'timeout',
  'priority',
  'tenant',
  'key',
  'hooks',
  'tensors',
];

function fieldIn<T>(
  fields: Readonly<Record<string, unknown>>,
  name: string,
  is: (value: unknown) => value is T,
  allowed: string,
): T | undefined {
  const value = fields[name];
  if (value === undefined || is(value)) {
    return value;
  }
  throw new InvalidInputError(
    `"${name}" in the message is ${formatValue(value)}; allowed is ${allowed}`,
  );
}

function isMethod(value: unknown): value is Method {
  return value === 'batchedRun' || value === 'run' || value === 'stream';
}

function isForm(value: unknown): value is TensorForm {
  return value === 'base64' || value === 'list';
}

function isNumber(value: unknown): value is number {
  return typeof value === 'number';
}

function isString(value: unknown): value is string {
  return typeof value === 'string';
}

function isStrings(value: unknown): value is readonly string[] {
  return Array.isArray(value) && value.every(isString);
}

import { Logger } from '@nestjs/common';
import { catchError, defer, Observable, throwError } from 'rxjs';
import {
  InvalidInputError,
  InvalidOutputError,
  isServingError,
  type ServingError,
  type StreamOptions,
} from '../../../index.js';
import { clientErrorOf } from '../../../doors/servings.js';
import { formatValue, fromWire, messageOf, typeName, type WireError } from '../../../doors/text.js';
import { isPlainObject } from '../../../doors/values.js';
import type { Block } from '../../../encoding/element-types.js';
import { type TensorForm, writeStrings, writeTensor } from '../../../encoding/json-tensor.js';
import { isTagOrEscaped, type Json, ReadContext, readJson } from '../../../encoding/json.js';
import {
  eventsOf,
  type ExportedServing,
  type ExportedServings,
  type Method,
  outputOf,
} from '../calls/exported-servings.js';
import type { InboundCalls } from '../calls/inbound-calls.js';
import type { JsonHandler } from '../transport.js';
import type { WireLimits } from '../wire/limits.js';
import { STATUS_CODES } from 'node:http';
import { bigIntOf, encodeValue, isTag } from '../wire/values.js';

interface JsonHandlersOptions {
  readonly calls: InboundCalls;
  readonly limits: WireLimits;
}

export function jsonHandlersOf(
  servings: ExportedServings,
  { calls, limits }: JsonHandlersOptions,
): ReadonlyMap<string, JsonHandler> {
  const handlerOf =
    (name: string): JsonHandler =>
    (message) =>
      new Observable((subscriber) => {
        const unsubscribed = new AbortController();
        const call = async (serving: ExportedServing): Promise<void> => {
          for await (const answer of answersOf(serving, message, limits, unsubscribed.signal)) {
            subscriber.next(answer);
          }
        };
        calls.take(name, call).then(
          () => subscriber.complete(),
          (error: unknown) => subscriber.error(error),
        );
        return () => unsubscribed.abort();
      });
  return new Map(servings.names().map((name) => [name, handlerOf(name)]));
}

async function* answersOf(
  serving: ExportedServing,
  message: unknown,
  limits: WireLimits,
  signal: AbortSignal,
): AsyncGenerator<unknown, void> {
  const { method, input, options, form } = readJsonCall(message, limits);
  const callOptions = { ...options, signal, origin: 'rpc' };
  if (method === 'stream') {
    for await (const event of eventsOf(serving, input, callOptions)) {
      yield writeJson(event, form, limits);
    }
  } else {
    yield writeJson(await outputOf(serving, method, input, callOptions), form, limits);
  }
}

const logger = new Logger('ServingTransport');

/** Nest sends errors as JSON. An Error would be `{}`, so we send plain objects. */
export function jsonAnswer(handler: JsonHandler): (data: unknown) => Promise<Observable<unknown>> {
  return async (data) =>
    defer(() => handler(data)).pipe(
      catchError((error: unknown) => throwError(() => loggedError(error))),
    );
}

function loggedError(error: unknown): object {
  if (!(isServingError(error) && error.expose)) {
    logger.error(error);
  }
  return jsonErrorOf(error);
}

interface JsonCall {
  readonly method: Method;
  readonly input: unknown;
  readonly options: Pick<
    StreamOptions<string>,
    'timeout' | 'priority' | 'tenant' | 'key' | 'version' | 'hooks'
  >;
  readonly form: TensorForm;
}

/**
 * Reads `{ input, method, timeout, priority, tenant, key, version, hooks, tensors }`. Only `input`
 * is required.
 *
 * @throws InvalidInputError naming the field
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
    version: fieldIn(fields, 'version', isString, 'a string'),
    ...(method === 'stream' && { hooks }),
  };
  const form = fieldIn(fields, 'tensors', isForm, '"base64" or "list"') ?? 'base64';
  const context = new ReadContext({ limits, name: 'input', source: 'the message' });
  return { method, input: readJson(fields['input'], context), options, form };
}

const names: readonly string[] = [
  'input',
  'method',
  'timeout',
  'priority',
  'tenant',
  'key',
  'version',
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

/**
 * Writes JSON for {@link readJson}. A Date becomes a string; undefined is omitted, or null in a
 * list. An Error keeps what clients may see.
 *
 * @throws InvalidOutputError for values that can't be sent
 */
export function writeJson(value: unknown, form: TensorForm, limits: WireLimits): Json {
  try {
    const { text, blocks } = encodeValue(value, limits);
    return writeNode(JSON.parse(text) as Json, blocks, form) ?? null;
  } catch (cause) {
    throw new InvalidOutputError(`The output cannot be written as JSON: ${messageOf(cause)}`, {
      cause,
    });
  }
}

function writeNode(node: Json, blocks: readonly Block[], form: TensorForm): Json | undefined {
  if (typeof node !== 'object' || node === null) {
    return node;
  }
  if (isList(node)) {
    return node.map((element) => writeNode(element, blocks, form) ?? null);
  }
  const parts = Object.entries(node);
  const [first] = parts;
  if (first && isTag(first[0])) {
    return writeTagged(...first, blocks, form);
  }
  return Object.fromEntries(
    parts.flatMap(([name, part]) => {
      const written = writeNode(part, blocks, form);
      return written === undefined ? [] : [[writtenName(name), written]];
    }),
  );
}

/** Removes the `$` that {@link encodeValue} adds. */
function writtenName(name: string): string {
  return name.startsWith('$') && !isTagOrEscaped(name.slice(1)) ? name.slice(1) : name;
}

function writeTagged(
  tag: string,
  content: Json,
  blocks: readonly Block[],
  form: TensorForm,
): Json | undefined {
  switch (tag) {
    case '$u':
      return undefined;
    case '$n':
      return { $number: content };
    case '$i':
      return { $bigint: bigIntOf(content as string).toString() };
    case '$d':
      return content === null ? null : new Date(Number(content)).toISOString();
    case '$s': {
      const [shape, data] = content as readonly [Json, Json];
      return { $tensor: writeStrings(shape, data) };
    }
    case '$e':
      return { ...jsonErrorOf(fromWire(content as unknown as WireError)) };
    case '$r':
      throw new InvalidOutputError('it holds a batch');
    default:
      return { $tensor: writeTensor(blocks[Number(content)]!, form) };
  }
}

function isList(node: Json): node is readonly Json[] {
  return Array.isArray(node);
}

function jsonErrorOf(error: unknown): ReturnType<ServingError['toJSON']> {
  return isServingError(error)
    ? clientErrorOf(error)
    : { name: 'Error', code: 'INTERNAL', statusCode: 500, message: STATUS_CODES[500]! };
}

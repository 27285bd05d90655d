import { isDeepStrictEqual } from 'node:util';
import * as fc from 'fast-check';
import type { Arbitrary } from 'fast-check';
import { Batch, type CallOptions, type ServingService, ServingError, Tensor } from 'nestjs-serving';
import { images, imageTensor, sameProbabilities } from './digits.js';
import type { Attack, Entry, Outcome } from './entry.js';
import { names } from './hostile-json.js';
import { hostileValue, type Recipe } from './hostile-values.js';

type Mode = 'batchedRun' | 'run' | 'stream' | 'inline stream';

interface Call {
  readonly serving: Recipe;
  readonly mode: Mode;
  readonly input: Recipe;
  /** The key of a batch around the input; the input as it is, where there is none. */
  readonly key: string | undefined;
  readonly origin: Recipe | undefined;
  readonly hooks: Recipe | undefined;
}

/** Whether a hostile input that was taken has been answered rightly. */
type Agrees = (input: unknown, result: unknown, words: string) => boolean;

/**
 * What hostile calls may be refused with. A result may also be too deep to come back from a thread.
 */
const REFUSALS = new Set([
  'SERVING_INVALID_BATCH',
  'SERVING_INVALID_INPUT',
  'SERVING_UNKNOWN_KEY',
  'SERVING_TOO_LARGE',
  'SERVING_UNKNOWN',
  'SERVING_INVALID_OUTPUT',
]);

function attack(servings: ServingService, call: Call, agrees: Agrees): Attack {
  return {
    async send() {
      let input: unknown;
      try {
        input = call.input.make();
        const result = await made(servings, call, input);
        const isPlain =
          call.key === undefined && call.mode !== 'stream' && call.mode !== 'inline stream';
        return !isPlain || agrees(input, result, call.input.words)
          ? { word: 'right' }
          : { word: 'wrong', fault: 'was answered wrongly' };
      } catch (error) {
        return judge(error, input);
      }
    },
    toString: () => {
      const { serving, mode, input, key, origin, hooks } = call;
      const options = [
        key === undefined ? '' : `key ${JSON.stringify(key)}`,
        origin && `origin ${origin.words}`,
        hooks && `hooks ${hooks.words}`,
      ];
      return `${mode}(${serving.words}, ${input.words}) ${options.filter(Boolean).join(', ')}`;
    },
  };
}

async function made(
  servings: ServingService,
  { serving, mode, key, origin, hooks }: Call,
  given: unknown,
): Promise<unknown> {
  const name = serving.make() as string;
  const input = key === undefined ? given : Batch.stack([given]).withKey(key);
  const options = { origin: origin?.make() } as CallOptions;
  if (mode === 'batchedRun' || mode === 'run') {
    return servings[mode](name, input, options);
  }
  const stream = servings.stream(name, input, {
    ...options,
    inline: mode === 'inline stream',
    hooks: hooks?.make() as never,
  });
  const events: unknown[] = [];
  for await (const event of stream) {
    events.push(event);
  }
  return events;
}

function judge(error: unknown, input: unknown): Outcome {
  if (
    error === input ||
    (error instanceof Error && error.message === 'an error that is an input')
  ) {
    return { word: 'the error that it was' };
  }
  if (!(error instanceof ServingError) || !REFUSALS.has(error.code)) {
    return {
      word: 'not ours',
      fault: `failed with ${error instanceof Error ? error.stack : typeof error}`,
    };
  }
  const { code, message } = error;
  return message.length > 2000
    ? { word: code, fault: `has a message of ${message.length} characters` }
    : { word: code };
}

const nothing: Recipe = { words: 'nothing', make: () => undefined };
const word = (text: string): Recipe => ({ words: JSON.stringify(text), make: () => text });

const often = <T>(usual: T, other: Arbitrary<T>): Arbitrary<T> =>
  fc.oneof({ arbitrary: fc.constant(usual), weight: 12 }, { arbitrary: other, weight: 1 });

function hostileCalls(
  servings: ServingService,
  name: string,
  agrees: Agrees,
  shaped: Arbitrary<Recipe> = hostileValue,
): Arbitrary<Attack> {
  return fc
    .record({
      serving: often(word(name), fc.oneof(names.map(word), hostileValue)),
      mode: fc.oneof(
        { arbitrary: fc.constant<Mode>('batchedRun'), weight: 6 },
        fc.constantFrom<Mode>('run', 'stream', 'inline stream'),
      ),
      input: fc.oneof({ arbitrary: hostileValue, weight: 3 }, shaped),
      key: often<string | undefined>(undefined, names),
      origin: often<Recipe | undefined>(undefined, fc.oneof(names.map(word), hostileValue)),
      hooks: often<Recipe | undefined>(undefined, fc.oneof(fc.constant(nothing), hostileValue)),
    })
    .map((call) => attack(servings, call, agrees));
}

function validCall(
  servings: ServingService,
  serving: string,
  input: unknown,
  isRight: (result: unknown) => boolean,
): Attack {
  return {
    async send() {
      try {
        const result = await servings.batchedRun(serving, input);
        return isRight(result)
          ? { word: 'right' }
          : { word: 'wrong', fault: 'got the answer of another, or a wrong one' };
      } catch (error) {
        return {
          word: 'failed',
          fault: `must be answered, and failed with ${(error as Error).stack}`,
        };
      }
    },
    toString: () => `a valid call of ${serving}`,
  };
}

const floats = (n: number): Tensor =>
  new Tensor('float32', Float32Array.of(n, n + 1, n + 2, n + 3), [1, 4]);
const sameFloats =
  (n: number) =>
  (result: unknown): boolean =>
    [...((result as Tensor).data as Float32Array)].join() === [n, n + 1, n + 2, n + 3].join();

/**
 * The elements of tensors in their order, or nothing where there is anything else: also of what
 * holds the same lists again and again.
 */
function elementsOf(value: unknown, left = { parts: 5000 }): unknown[] | undefined {
  if (typeof value !== 'object' || value === null || left.parts-- === 0) {
    return undefined;
  }
  const { data } = value as { data?: ArrayLike<unknown> };
  if (ArrayBuffer.isView(data) || (Array.isArray(data) && 'dims' in value)) {
    return Array.from(data as ArrayLike<unknown>);
  }
  const elements: unknown[] = [];
  for (const [, part] of Object.entries(value).toSorted(([x], [y]) =>
    Array.isArray(value) ? 0 : x < y ? -1 : 1,
  )) {
    const own = elementsOf(part, left);
    if (!own) {
      return undefined;
    }
    elements.push(...own);
  }
  return elements;
}

const sameOrTensors: Agrees = (input, result) => {
  if (
    Object.is(input, result) ||
    input instanceof Batch ||
    input instanceof Promise ||
    isSequence(input)
  ) {
    return true;
  }
  const [own, given] = [elementsOf(result), elementsOf(input)];
  return (
    own !== undefined &&
    given !== undefined &&
    own.length === given.length &&
    own.every((element, i) => Object.is(element, given[i]))
  );
};

/** A lazy sequence, which gives the results of all that it has. */
const isSequence = (value: unknown): boolean =>
  typeof value === 'object' &&
  value !== null &&
  (Symbol.asyncIterator in value ||
    'subscribe' in value ||
    'next' in value ||
    (Array.isArray(value) && value[0] instanceof Batch));

/**
 * The same with plain lists in place of tensors, and of what looks like a tensor, since a serving
 * makes one of that.
 */
function withoutTensors(value: unknown): unknown {
  if (typeof value !== 'object' || value === null) {
    return value;
  }
  if (Array.isArray(value)) {
    return value.map(withoutTensors);
  }
  const { data } = value as { data?: ArrayLike<unknown> };
  return 'dims' in value && (ArrayBuffer.isView(data) || Array.isArray(data))
    ? { elements: Array.from(data as ArrayLike<unknown>) }
    : Object.fromEntries(Object.entries(value).map(([name, part]) => [name, withoutTensors(part)]));
}

/** What has been to a thread and back is another object; what JSON can say is the same. */
const sameClone: Agrees = (input, result, words) => {
  if (typeof input !== 'object' || input === null) {
    return Object.is(input, result);
  }
  return (
    !words.startsWith('JSON') ||
    isDeepStrictEqual(withoutTensors(input), withoutTensors(result)) ||
    sameOrTensors(input, result, words)
  );
};

/** Calls of a function in the application's own thread. */
export function functionCalls(servings: ServingService): Entry {
  return {
    name: 'service, function',
    hostile: hostileCalls(servings, 'echo', sameOrTensors),
    valid: fc.nat().map((n) => {
      const input = { n };
      return validCall(servings, 'echo', input, (result) => result === input);
    }),
  };
}

/** Calls of a function in a thread of its own. */
export function threadCalls(servings: ServingService): Entry {
  return {
    name: 'service, thread',
    hostile: hostileCalls(servings, 'thread', sameClone),
    valid: fc.oneof(
      fc
        .nat()
        .map((n) =>
          validCall(servings, 'thread', { n }, (result) => (result as { n: number }).n === n),
        ),
      fc.nat(1e6).map((n) => validCall(servings, 'thread', floats(n), sameFloats(n))),
    ),
  };
}

/** Calls whose batches are padded. */
export function sizedCalls(servings: ServingService): Entry {
  return {
    name: 'service, allowed sizes',
    hostile: hostileCalls(servings, 'sizes', sameOrTensors),
    valid: fc.nat(1e6).map((n) => validCall(servings, 'sizes', floats(n), sameFloats(n))),
  };
}

const probabilitiesOf = (result: unknown): Float32Array =>
  (result as { probabilities: Tensor }).probabilities.data as Float32Array;

/** Calls of a model. */
export async function modelCalls(servings: ServingService): Promise<Entry> {
  const alone: Float32Array[] = [];
  for (const image of images) {
    alone.push(probabilitiesOf(await servings.run('digits', imageTensor(image))));
  }
  const shaped: Arbitrary<Recipe> = fc.oneof(
    hostileValue.map((value) => ({
      words: `{ image: ${value.words} }`,
      make: () => ({ image: value.make() }),
    })),
    fc
      .tuple(fc.constantFrom('image', '', '0', '__proto__'), names, hostileValue)
      .map(([name, other, value]) => ({
        words: `{ ${name}: an image, ${JSON.stringify(other)}: ${value.words} }`,
        make: () =>
          Object.fromEntries([
            [name, imageTensor(images[0]!)],
            [other, value.make()],
          ]),
      })),
  );
  return {
    name: 'service, model',
    hostile: hostileCalls(
      servings,
      'digits',
      (_, result) => probabilitiesOf(result).length % 10 === 0,
      shaped,
    ),
    valid: fc
      .nat(images.length - 1)
      .map((i) =>
        validCall(servings, 'digits', { image: imageTensor(images[i]!) }, (result) =>
          sameProbabilities(probabilitiesOf(result), alone[i]!),
        ),
      ),
  };
}

import type { InferenceSession } from 'onnxruntime-common';
import { ServingLoadError, Tensor } from '../../index.js';
import type { SessionOfThread } from '../../doors/models.js';
import { blankOf, storageClasses } from '../../doors/values.js';
import { free } from './onnx-session.js';
import { floatsOf } from './outputs.js';

/** Keys and values of one text's tokens so far. Belongs to one {@link KeyValueCache}. */
export interface CachedText {
  /** Tokens that the model has read. */
  length: number;
}

/**
 * Keys and values of a decoder's texts, of any lengths. Each result is the one that its text would
 * have alone.
 */
export interface KeyValueCache<Text extends CachedText = CachedText> {
  open(): Text;
  close(text: Text): void;
  /** Reads more of one text; returns the next token's logits. */
  extend(text: Text, ids: readonly number[]): Promise<Float32Array>;
  /** Reads one token of each text; returns the next tokens' logits. */
  step(texts: readonly Text[], ids: readonly number[]): Promise<Float32Array[]>;
}

interface CacheOptions {
  readonly places: number;
  readonly context: number;
}

/** Tensor `[texts, heads, tokens, width]` of a cache. */
interface Port {
  /** `past_key_values.0.key`. */
  readonly past: string;
  /** `present.0.key`. */
  readonly present: string;
  readonly type: Tensor.Type;
  readonly heads: number;
  readonly width: number;
}

/** Decoder whose cache is an input and an output, as `optimum` and onnxruntime-genai export it. */
export class Decoder {
  readonly ports: readonly Port[];
  readonly outputs: readonly string[];
  private readonly inputs: ReadonlySet<string>;

  /** @throws ServingLoadError without a cache, or with inputs that we can't fill */
  constructor(
    readonly session: SessionOfThread,
    private readonly name: string,
  ) {
    this.inputs = new Set(session.inputNames);
    this.ports = session.inputMetadata.flatMap((input) => {
      const number = /^past_key_values\.(.+)$/.exec(input.name)?.[1];
      if (number === undefined || !input.isTensor) {
        return [];
      }
      const [, heads, , width] = input.shape;
      if (typeof heads !== 'number' || typeof width !== 'number') {
        throw this.unusable(`its input ${input.name} states no fixed heads and width`);
      }
      const present = `present.${number}`;
      return [{ past: input.name, present, type: input.type, heads, width }];
    });
    if (this.ports.length === 0) {
      throw this.unusable(
        'it has no inputs past_key_values.*, so it would read a text again for each token',
      );
    }
    const filled = new Set([...TEXT_INPUTS, ...this.ports.map(({ past }) => past)]);
    const others = session.inputNames.filter((input) => !filled.has(input));
    if (others.length > 0) {
      throw this.unusable(`nothing fills its input ${others.join(', ')}`);
    }
    this.outputs = ['logits', ...this.ports.map(({ present }) => present)];
    const missing = this.outputs.filter((output) => !session.outputNames.includes(output));
    if (missing.length > 0) {
      throw this.unusable(`it has no output ${missing.join(', ')}`);
    }
  }

  /** Most tokens of a run, which returns the vocabulary's logits for each. */
  get mostAtOnce(): number {
    const logits = this.session.outputMetadata.find(({ name }) => name === 'logits');
    const vocabulary = logits?.isTensor ? logits.shape.at(-1) : undefined;
    return typeof vocabulary === 'number' ? Math.ceil(MOST_LOGITS / vocabulary) : Infinity;
  }

  /**
   * Inputs of a run that reads equally many tokens of each text.
   *
   * @param total the longest row's length, padding included
   * @param isToken true for a token, false for padding, in a row with this many tokens
   */
  feedsOf(
    texts: readonly CachedText[],
    ids: readonly number[],
    total: number,
    isToken: (at: number, length: number) => boolean,
  ): Record<string, Tensor> {
    const rows = texts.length;
    const count = ids.length / rows;
    const lengths = texts.map(({ length }) => length + count);
    const inputs = {
      input_ids: () => integers(ids, [rows, count]),
      attention_mask: () => {
        const mask = lengths.flatMap((length) => range(total, (at) => Number(isToken(at, length))));
        return integers(mask, [rows, total]);
      },
      position_ids: () => {
        const positions = texts.flatMap(({ length }) => range(count, (at) => length + at));
        return integers(positions, [rows, count]);
      },
      seqlens_k: () =>
        new Tensor(
          'int32',
          Int32Array.from(lengths, (length) => length - 1),
          [rows],
        ),
      total_sequence_length: () => new Tensor('int32', Int32Array.of(total), []),
    };
    const own = Object.entries(inputs).filter(([name]) => this.inputs.has(name));
    return Object.fromEntries(own.map(([name, tensor]) => [name, tensor()]));
  }

  unusable(why: string): ServingLoadError {
    return new ServingLoadError(
      `${this.name} is no decoder that textGeneration can run: ${why}; export it with its cache, ` +
        'as optimum (text-generation-with-past) or the model builder of onnxruntime-genai do',
    );
  }
}

/** 64 MiB. */
const MOST_LOGITS = 2 ** 24;

const TEXT_INPUTS = [
  'input_ids',
  'attention_mask',
  'position_ids',
  'seqlens_k',
  'total_sequence_length',
];

/** Ways to keep a cache, fastest first. */
export type CacheKind = 'in place' | 'copied' | 'growing';

/**
 * Chooses the cache by trials: buffers that a run writes to in place (with GroupQueryAttention), or
 * that we copy its outputs to (if this runtime copies inputs), or else tensors that each run
 * returns longer.
 *
 * @throws ServingLoadError if texts of different lengths fail in all
 */
export async function cacheFor(
  decoder: Decoder,
  options: CacheOptions,
): Promise<{ readonly kind: CacheKind; readonly cache: KeyValueCache }> {
  const alone = await Promise.all(
    TRIAL.map(async (ids) => {
      const growing = new GrowingCache(decoder);
      return growing.extend(growing.open(), ids);
    }),
  );
  const kinds: Record<CacheKind, (own: CacheOptions, how?: RunOptions) => KeyValueCache> = {
    'in place': (own, how) => new SharedCache(decoder, own, true, how),
    copied: (own, how) => new SharedCache(decoder, own, false, how),
    growing: (_, how) => new GrowingCache(decoder, how),
  };
  for (const kind of Object.keys(kinds) as CacheKind[]) {
    const trial = kinds[kind]({ places: TRIAL.length, context: 8 }, SILENT);
    if (await works(trial, alone)) {
      return { kind, cache: kinds[kind](options) };
    }
  }
  throw decoder.unusable('two texts of different lengths have other results together than alone');
}

type RunOptions = InferenceSession.RunOptions;

/** Silences trials, which may fail. */
const SILENT: RunOptions = { logSeverityLevel: 4 };

const TRIAL = [
  [1, 2, 3, 4, 5],
  [3, 2, 1],
];

/** Quantised weights round differently in runs of other sizes. */
const MOST_APART = 0.1;

/** Reads each text but its last token, then the last tokens together. */
async function works(cache: KeyValueCache, expected: readonly Float32Array[]): Promise<boolean> {
  try {
    const texts = TRIAL.map(() => cache.open());
    for (const [i, ids] of TRIAL.entries()) {
      await cache.extend(texts[i]!, ids.slice(0, -1));
    }
    const lasts = TRIAL.map((ids) => ids.at(-1)!);
    const logits = await cache.step(texts, lasts);
    return logits.every((own, i) => distance(own, expected[i]!) <= MOST_APART);
  } catch {
    // Other models refuse such shapes.
    return false;
  }
}

/** Length of the difference, relative to the second vector's; NaN for invalid numbers. */
function distance(one: Float32Array, other: Float32Array): number {
  const apart = one.reduce((sum, value, i) => sum + (value - other[i]!) ** 2, 0);
  return Math.sqrt(apart / other.reduce((sum, value) => sum + value ** 2, 0));
}

/** Tokens by which buffers grow. */
const GROWTH = 64;

interface PlacedText extends CachedText {
  place: number;
}

/**
 * Buffer `[places, heads, capacity, width]` for each port, which runs read and continue; texts
 * begin with their tokens. A step's texts must be adjacent, so we move them when others leave.
 */
export class SharedCache implements KeyValueCache<PlacedText> {
  private readonly texts: PlacedText[] = [];
  private capacity = 0;
  private buffers: Float32Array[] = [];

  constructor(
    private readonly decoder: Decoder,
    private readonly options: CacheOptions,
    /** True if a run writes to its inputs: its outputs share their memory. */
    private readonly isInPlace: boolean,
    private readonly runOptions: RunOptions = {},
  ) {}

  open(): PlacedText {
    const text = { length: 0, place: this.texts.length };
    this.texts.push(text);
    return text;
  }

  close({ place }: PlacedText): void {
    const last = this.texts.pop()!;
    if (last.place !== place) {
      this.move(last, place);
      this.texts[place] = last;
    }
  }

  async extend(text: PlacedText, ids: readonly number[]): Promise<Float32Array> {
    const [logits] = await this.run([text], text.place, ids);
    return logits!;
  }

  async step(texts: readonly PlacedText[], ids: readonly number[]): Promise<Float32Array[]> {
    this.gather(texts);
    const inOrder = texts
      .map((text, i) => ({ text, id: ids[i]!, i }))
      .toSorted((one, other) => one.text.place - other.text.place);
    const read = await this.run(
      inOrder.map(({ text }) => text),
      0,
      inOrder.map(({ id }) => id),
    );
    const logits: Float32Array[] = [];
    inOrder.forEach(({ i }, place) => (logits[i] = read[place]!));
    return logits;
  }

  /** Moves these texts to the first places, in any order, and others behind them. */
  private gather(texts: readonly PlacedText[]): void {
    const own = new Set(texts);
    const others = this.texts.slice(0, texts.length).filter((text) => !own.has(text));
    texts
      .filter(({ place }) => place >= texts.length)
      .forEach((text, i) => this.swap(text, others[i]!));
  }

  private async run(
    texts: readonly PlacedText[],
    from: number,
    ids: readonly number[],
  ): Promise<Float32Array[]> {
    const { decoder } = this;
    const total = Math.max(...texts.map(({ length }) => length)) + ids.length / texts.length;
    this.reserve(total);
    const tensors = this.tensors(from, texts.length);
    const feeds = decoder.feedsOf(texts, ids, total, (at, length) => at < length);
    const fetches: Record<string, Tensor | null> = { logits: null };
    decoder.ports.forEach(({ past, present }, i) => {
      feeds[past] = tensors[i]!;
      fetches[present] = this.isInPlace ? tensors[i]! : null;
    });
    const results = await decoder.session.run(feeds, fetches, this.runOptions);
    const returned = decoder.ports.map(({ present }) => results[present] as Tensor);
    if (!this.isInPlace) {
      returned.forEach(({ data }, i) =>
        (tensors[i]!.data as Float32Array).set(data as Float32Array),
      );
    }
    // Also in place, the runtime returns copies.
    free(
      returned.filter(({ data }, i) => (data as Float32Array).buffer !== this.buffers[i]!.buffer),
    );
    texts.forEach((text) => (text.length += ids.length / texts.length));
    return lastOfEach(results['logits'] as Tensor);
  }

  private tensors(from: number, count: number): Tensor[] {
    const { capacity } = this;
    return this.decoder.ports.map(({ type, heads, width }, i) => {
      const size = this.sizeOf(i);
      const data = this.buffers[i]!.subarray(from * size, (from + count) * size);
      return new Tensor(type, data, [count, heads, capacity, width]);
    });
  }

  private reserve(tokens: number): void {
    if (tokens <= this.capacity) {
      return;
    }
    const { places, context } = this.options;
    const before = this.capacity;
    const capacity = Math.min(context, Math.ceil(tokens / GROWTH) * GROWTH);
    this.buffers = this.decoder.ports.map(({ type, heads, width }, i) => {
      const grown = zeros(type, places * heads * capacity * width);
      const kept = this.buffers[i] ?? new Float32Array();
      const size = before * width;
      const rows = size === 0 ? 0 : this.texts.length * heads;
      for (let row = 0; row < rows; row++) {
        grown.set(kept.subarray(row * size, (row + 1) * size), row * capacity * width);
      }
      return grown;
    });
    this.capacity = capacity;
  }

  private swap(text: PlacedText, other: PlacedText): void {
    const [from, to] = [text.place, other.place];
    const kept = this.buffers.map((numbers, i) =>
      numbers.slice(to * this.sizeOf(i), (to + 1) * this.sizeOf(i)),
    );
    this.move(text, to);
    kept.forEach((numbers, i) => this.buffers[i]!.set(numbers, from * this.sizeOf(i)));
    other.place = from;
    this.texts[to] = text;
    this.texts[from] = other;
  }

  private move(text: PlacedText, place: number): void {
    this.buffers.forEach((numbers, i) => {
      const size = this.sizeOf(i);
      const start = text.place * size;
      numbers.copyWithin(place * size, start, start + size);
    });
    text.place = place;
  }

  /** Numbers of a text in the port's buffer. */
  private sizeOf(port: number): number {
    const { heads, width } = this.decoder.ports[port]!;
    return heads * this.capacity * width;
  }
}

interface GatheredText extends CachedText {
  group: Group;
  index: number;
}

/** Texts in the same tensors, at the end, behind padding. */
interface Group {
  tensors: readonly Tensor[];
  texts: readonly GatheredText[];
}

/**
 * Tensors that each run returns longer, for models without GroupQueryAttention. The attention mask
 * hides the padding before shorter texts.
 */
export class GrowingCache implements KeyValueCache<GatheredText> {
  constructor(
    private readonly decoder: Decoder,
    private readonly runOptions: RunOptions = {},
  ) {}

  open(): GatheredText {
    const tensors = this.decoder.ports.map(({ type, heads, width }) =>
      blankOf(type, [1, heads, 0, width]),
    );
    const group: Group = { tensors, texts: [] };
    const text: GatheredText = { length: 0, group, index: 0 };
    group.texts = [text];
    return text;
  }

  close(text: GatheredText): void {
    text.group = { tensors: [], texts: [] };
  }

  async extend(text: GatheredText, ids: readonly number[]): Promise<Float32Array> {
    const [logits] = await this.run(this.grouped([text]), ids);
    return logits!;
  }

  step(texts: readonly GatheredText[], ids: readonly number[]): Promise<Float32Array[]> {
    return this.run(this.grouped(texts), ids);
  }

  private async run(group: Group, ids: readonly number[]): Promise<Float32Array[]> {
    const { decoder } = this;
    const { texts } = group;
    const count = ids.length / texts.length;
    const total = group.tensors[0]!.dims[2]! + count;
    const feeds = decoder.feedsOf(texts, ids, total, (at, length) => at >= total - length);
    decoder.ports.forEach(({ past: name }, i) => (feeds[name] = group.tensors[i]!));
    const results = await decoder.session.run(feeds, decoder.outputs, this.runOptions);
    free(group.tensors);
    group.tensors = decoder.ports.map(({ present }) => results[present] as Tensor);
    texts.forEach((text) => (text.length += count));
    return lastOfEach(results['logits'] as Tensor);
  }

  /** Group of exactly these texts. */
  private grouped(texts: readonly GatheredText[]): Group {
    const [{ group: known }] = texts as [GatheredText];
    const isSame =
      known.texts.length === texts.length &&
      texts.every((text, i) => text.group === known && known.texts[i] === text);
    if (isSame) {
      return known;
    }
    const longest = Math.max(...texts.map(({ length }) => length));
    const tensors = this.decoder.ports.map((port, i) => gathered(port, i, texts, longest));
    const group: Group = { tensors, texts };
    texts.forEach((text, index) => Object.assign(text, { group, index }));
    return group;
  }
}

function gathered(
  { type, heads, width }: Port,
  port: number,
  texts: readonly GatheredText[],
  longest: number,
): Tensor {
  const numbers = zeros(type, texts.length * heads * longest * width);
  texts.forEach(({ group, index, length }, row) => {
    const tensor = group.tensors[port]!;
    const tokens = tensor.dims[2]!;
    const data = tensor.data as Float32Array;
    for (let head = 0; head < heads; head++) {
      const end = (index * heads + head + 1) * tokens * width;
      const at = (row * heads + head + 1) * longest * width - length * width;
      numbers.set(data.subarray(end - length * width, end), at);
    }
  });
  return new Tensor(type, numbers, [texts.length, heads, longest, width]);
}

/** Zeros: attention multiplies padding by 0, which NaN would survive. */
function zeros(type: Tensor.Type, length: number): Float32Array {
  return new (storageClasses.get(type) ?? Float32Array)(length) as Float32Array;
}

function integers(numbers: readonly number[], dims: readonly number[]): Tensor {
  const data = new BigInt64Array(numbers.length);
  numbers.forEach((number, i) => (data[i] = BigInt(number)));
  return new Tensor('int64', data, dims);
}

function range(length: number, value: (at: number) => number): number[] {
  return Array.from({ length }, (_, at) => value(at));
}

/** Logits of each text's last token, in `[texts, vocabulary]` or `[texts, tokens, vocabulary]`. */
function lastOfEach(logits: Tensor): Float32Array[] {
  const texts = logits.dims[0]!;
  const vocabulary = logits.dims.at(-1)!;
  const numbers = floatsOf(logits);
  const size = numbers.length / texts;
  return Array.from({ length: texts }, (_, text) =>
    numbers.subarray((text + 1) * size - vocabulary, (text + 1) * size),
  );
}

import { markAsUntransferable } from 'node:worker_threads';
import { beforeAll, beforeEach, describe, expect, it } from '@jest/globals';
import { last, PENDING, ServingLoadError } from 'nestjs-serving';
import * as fc from 'fast-check';
import { InferenceSession, type Tensor } from 'onnxruntime-node';
import { AnswerText, type Decode } from '../../../lib/extensions/tasks/answer-text.js';
import {
  type GeneratedText,
  Generator,
  type PromptRow,
} from '../../../lib/extensions/tasks/generator.js';
import {
  cacheFor,
  type CachedText,
  Decoder,
  GrowingCache,
  type KeyValueCache,
  SharedCache,
} from '../../../lib/extensions/tasks/key-value-cache.js';
import { HeldAnswer } from '../../../lib/extensions/tasks/grammars.js';
import {
  allowOnly,
  likeliest,
  logProbabilityOf,
  Sampler,
  type Sampling,
} from '../../../lib/extensions/tasks/sampling.js';
import { loadLibrary } from '../../../lib/extensions/tasks/text-tokenizer.js';
import { readTiny, written } from '../../fixtures/tasks/tiny-models.js';

const greedy: Sampling = {
  temperature: 0,
  topK: 2 ** 31,
  topP: 1,
  minP: 0,
  repetitionPenalty: 1,
  presencePenalty: 0,
  frequencyPenalty: 0,
  seed: 1,
};

function expectShares(tokens: readonly number[], shares: readonly number[]): void {
  shares.forEach((share, token) => {
    const drawn = tokens.filter((each) => each === token).length / tokens.length;
    expect(Math.abs(drawn - share)).toBeLessThan(0.015);
  });
}

/** Four tokens that a sampler takes of the same logits. */
const four = (own: Partial<Sampling>, ...values: number[]): number[] => {
  const sampler = new Sampler({ ...greedy, ...own }, [0, 0, 0]);
  return [1, 2, 3, 4].map(() => sampler.next(Float32Array.from(values)));
};

const penalised = (repetitionPenalty: number, prompt: number[], ...values: number[]) =>
  new Sampler({ ...greedy, repetitionPenalty }, prompt).next(Float32Array.from(values));

describe('A sampler', () => {
  const probabilities = [0.15, 0.5, 0.1, 0.25];
  /** The sampler may change them. */
  const logits = () => Float32Array.from(probabilities, Math.log);

  function draws(count: number, options: Partial<Sampling>): number[] {
    const sampler = new Sampler({ ...greedy, temperature: 1, ...options }, []);
    return Array.from({ length: count }, () => sampler.next(logits()));
  }

  it('[22.14] takes the likeliest token at temperature 0, and the first of equals', () => {
    expect(new Set(draws(50, { temperature: 0 }))).toEqual(new Set([1]));
    expect(new Sampler(greedy, []).next(Float32Array.of(0, 2, 1, 2))).toBe(1);
    expect(likeliest(Float32Array.of(-3, -1, -2))).toBe(1);
  });

  it('[22.14] takes the likeliest token with topK 1, at any temperature', () => {
    expect(new Set(draws(500, { temperature: 2, topK: 1 }))).toEqual(new Set([1]));
  });

  it.each([
    [1, [1]],
    [2, [1, 3]],
    [3, [0, 1, 3]],
    [4, [0, 1, 2, 3]],
    [1000, [0, 1, 2, 3]],
  ])('[22.14] draws among the %d likeliest tokens of topK', (topK, tokens) => {
    expect(new Set(draws(2000, { topK }))).toEqual(new Set(tokens));
  });

  it.each([
    [0.001, [1]],
    [0.49, [1]],
    [0.51, [1, 3]],
    [0.74, [1, 3]],
    [0.76, [0, 1, 3]],
    [0.91, [0, 1, 2, 3]],
    [1, [0, 1, 2, 3]],
  ])('[22.14] draws among the fewest tokens that reach topP %d', (topP, tokens) => {
    expect(new Set(draws(2000, { topP }))).toEqual(new Set(tokens));
  });

  it('[22.14] counts topP among the tokens of topK', () => {
    // Of two tokens the likelier has two thirds.
    expect(new Set(draws(2000, { topK: 2, topP: 0.6 }))).toEqual(new Set([1]));
    expect(new Set(draws(2000, { topK: 2, topP: 0.7 }))).toEqual(new Set([1, 3]));
  });

  it.each([
    [0, [0, 1, 2, 3]],
    [0.19, [0, 1, 2, 3]],
    [0.21, [0, 1, 3]],
    [0.49, [1, 3]],
    [0.51, [1]],
    [1, [1]],
  ])("[22.14] draws no token below minP %d of the likeliest's probability", (minP, tokens) => {
    expect(new Set(draws(2000, { minP }))).toEqual(new Set(tokens));
  });

  it("[22.14] makes the answer's tokens less likely, and not the prompt's", () => {
    // Once, however often a token was written.
    expect(four({ presencePenalty: 1.5 }, 2, 1, 0)).toEqual([0, 1, 0, 0]);
    // By its count.
    expect(four({ frequencyPenalty: 0.6 }, 2, 1, 0)).toEqual([0, 0, 1, 0]);
    expect(four({ presencePenalty: -2 }, 2, 1.9, 0)).toEqual([0, 0, 0, 0]);
  });

  it('[22.24] draws only allowed tokens', () => {
    const own = Float32Array.from({ length: 70 }, (_, token) => token);
    allowOnly(own, Int32Array.of(1 << 31, 0b101));
    expect([...own].flatMap((logit, token) => (logit === -Infinity ? [] : [token]))).toEqual([
      31, 32, 34,
    ]);
  });

  it("[22.14] draws tokens by the model's probabilities", () => {
    expectShares(draws(20_000, {}), probabilities);
  });

  it.each([0.5, 2])('[22.14] draws tokens by their probabilities at temperature %d', (t) => {
    const powers = probabilities.map((probability) => probability ** (1 / t));
    const sum = powers.reduce((total, power) => total + power, 0);
    const shares = powers.map((power) => power / sum);
    expectShares(draws(20_000, { temperature: t }), shares);
  });

  it('[22.14] draws the kept tokens by their own probabilities', () => {
    expectShares(draws(20_000, { topK: 3 }), [0.15 / 0.9, 0.5 / 0.9, 0, 0.25 / 0.9]);
    expectShares(draws(20_000, { topP: 0.7 }), [0, 2 / 3, 0, 1 / 3]);
  });

  it('[22.14] draws the same for the same seed, also beside others, and else differently', () => {
    const alone = draws(100, { seed: 7 });
    const samplers = [7, 8, 7].map((seed) => new Sampler({ ...greedy, temperature: 1, seed }, []));
    const beside = alone.map(() => samplers.map((sampler) => sampler.next(logits())));
    expect(beside.map(([own]) => own)).toEqual(alone);
    expect(beside.map(([, , own]) => own)).toEqual(alone);
    expect(beside.map(([, other]) => other)).not.toEqual(alone);
  });

  it.each([0, -1, 2 ** 31, 2 ** 40, -(2 ** 53)])('[22.14] takes the seed %d', (seed) => {
    expectShares(draws(20_000, { seed }), probabilities);
  });

  it('[22.14] makes tokens of the prompt less likely, once each, and more likely below 1', () => {
    expect(penalised(2, [0, 0, 0], 2, 1.5, 0)).toBe(1);
    expect(penalised(1.25, [0, 0, 0], 2, 1.5, 0)).toBe(0);
    // Negative ones are multiplied.
    expect(penalised(2, [0], -1, -1.5)).toBe(1);
    expect(penalised(1.25, [0], -1, -1.5)).toBe(0);
    expect(penalised(0.5, [1], 2, 1.5, 0)).toBe(1);
    expect(penalised(1, [0], 2, 1.5, 0)).toBe(0);
  });

  it('[22.14] makes tokens of the answer less likely', () => {
    const sampler = new Sampler({ ...greedy, repetitionPenalty: 1.5 }, []);
    const tokens = Array.from({ length: 5 }, () => sampler.next(Float32Array.of(4, 3, 2)));
    // 4 and 3 become 2.67 and 2, so that the first is the likeliest from then on.
    expect(tokens).toEqual([0, 1, 0, 0, 0]);
  });

  it('[22.14] gives the natural log-probability of a token, without overflow', () => {
    const values = Float32Array.from(probabilities, (share) => Math.log(share) + 1000);
    probabilities.forEach((share, token) => {
      expect(logProbabilityOf(values, token)).toBeCloseTo(Math.log(share), 3);
      expect(logProbabilityOf(logits(), token)).toBeCloseTo(Math.log(share), 6);
    });
    expect(logProbabilityOf(Float32Array.of(-Infinity, 5), 1)).toBe(0);
  });
});

/** Draws among all tokens, of which those that topK and topP leave out can't be drawn. */
function drawnAsSorted(logits: readonly number[], sampling: Sampling): number {
  const place = (token: number): number => -logits[token]!;
  const sorted = [...logits.keys()].toSorted((a, b) => place(a) - place(b) || a - b);
  const top = sorted.slice(0, sampling.topK);
  const weightOf = (token: number): number => Math.exp(logits[token]! - logits[top[0]!]!);
  const sum = top.reduce((total, token) => total + weightOf(token), 0);
  let reached = 0;
  const end = top.findIndex((token) => (reached += weightOf(token)) > sampling.topP * sum);
  const kept = new Set(top.slice(0, end === -1 ? top.length : end + 1));
  const left = Float32Array.from(logits, (logit, token) => (kept.has(token) ? logit : -Infinity));
  return new Sampler({ ...sampling, topK: Infinity, topP: 1 }, []).next(left);
}

describe('A draw', () => {
  // Eighths are exact, and have many equals.
  const logit = fc.integer({ min: -20, max: 20 }).map((eighths) => eighths / 8);

  it('[FZ3] A draw with any topK and topP takes the token that a sort of all tokens gives', () => {
    fc.assert(
      fc.property(
        fc.array(logit, { minLength: 1, maxLength: 60 }),
        fc.integer({ min: 1, max: 70 }),
        fc.constantFrom(1, 0.97, 0.71, 0.43, 0.01),
        fc.nat(),
        (logits, topK, topP, seed) => {
          const sampling = { ...greedy, temperature: 1, topK, topP, seed };
          const token = new Sampler(sampling, []).next(Float32Array.from(logits));
          expect(token).toBe(drawnAsSorted(logits, sampling));
        },
      ),
      { numRuns: 2000 },
    );
  });

  it('[FZ3] A draw with a large topK reads each number of the vocabulary a few times', () => {
    // Each is better than all before it.
    const logits = Float32Array.from({ length: 4000 }, (_, token) => token / 1000);
    let reads = 0;
    const counting = new Proxy(logits, {
      get(target, name) {
        reads++;
        return target[name as never];
      },
    });
    new Sampler({ ...greedy, temperature: 1, topK: 2000 }, []).next(counting);
    expect(reads).toBeGreaterThan(4000);
    expect(reads).toBeLessThan(60 * 4000);
  });
});

const fileOf = (path: string): object =>
  JSON.parse(readTiny(`generator/${path}`).toString()) as object;

/** Each token is a text. */
const spelled = (tokens: readonly string[], stops: readonly string[]) => {
  const text = new AnswerText((ids) => ids.map((id) => tokens[id]!).join(''), stops);
  const pieces: string[] = [];
  for (const id of tokens.keys()) {
    pieces.push(text.push(id));
    if (text.hasStopped) {
      return { pieces, hasStopped: true, rest: text.end() };
    }
  }
  const rest = text.end();
  return { pieces, hasStopped: text.hasStopped, rest };
};

describe('The text of an answer', () => {
  let decode: Decode;

  beforeAll(async () => {
    const { Tokenizer } = await loadLibrary();
    const tokenizer = new Tokenizer(fileOf('tokenizer.json'), fileOf('tokenizer_config.json'));
    decode = (ids) =>
      ids.length === 0
        ? ''
        : tokenizer.decode([...ids], {
            skip_special_tokens: true,
            clean_up_tokenization_spaces: false,
          });
  });

  it.each(written.streams.map(({ decoded, ids }) => [decoded, ids] as const))(
    '[22.10] in pieces is the whole one, each as soon as its last character is complete: %j',
    (decoded, ids) => {
      const text = new AnswerText(decode, []);
      let joined = '';
      for (const [at, id] of ids.entries()) {
        const piece = text.push(id);
        joined += piece;
        const whole = decode(ids.slice(0, at + 1));
        if (whole.endsWith('\ufffd')) {
          expect(piece).toBe('');
        } else {
          expect(joined).toBe(whole);
        }
        // Nor does it have half a character.
        expect(piece).not.toMatch(/\p{Surrogate}/u);
      }
      expect(joined + text.end()).toBe(decoded);
    },
  );

  it('[22.10] in pieces is the whole one for tokens that make no characters', () => {
    for (const { greedy: ids, decoded } of [...written.prompts, ...written.chats]) {
      const text = new AnswerText(decode, []);
      const pieces = ids.map((id) => text.push(id));
      expect(pieces.join('') + text.end()).toBe(decoded);
    }
  });

  it('[22.10] gives a replacement character at the end alone for an incomplete one', () => {
    const [first] = written.streams.find(({ decoded }) => decoded === '👍🏽👍🏿')!.ids;
    const text = new AnswerText(decode, []);
    expect([text.push(first!), text.end()]).toEqual(['', '\ufffd']);
  });

  it('[22.10] is decoded from its last tokens alone', () => {
    const lengths: number[] = [];
    const noting: Decode = (ids) => {
      lengths.push(ids.length);
      return decode(ids);
    };
    const text = new AnswerText(noting, []);
    written.prompts.at(-1)!.ids.forEach((id) => text.push(id));
    expect(Math.max(...lengths)).toBeLessThan(12);
  });

  it('[22.10] ends before a stop string that is split over pieces', () => {
    expect(spelled(['a', 'b', 'ST', 'O', 'Pc', 'd'], ['STOP'])).toEqual({
      pieces: ['a', 'b', '', '', ''],
      hasStopped: true,
      rest: '',
    });
    expect(spelled(['one ST', 'OP'], ['STOP']).pieces).toEqual(['one ', '']);
    expect(spelled(['oneSTOPtwo'], ['STOP']).pieces).toEqual(['one']);
  });

  it('[22.10] ends before the first of several stop strings', () => {
    expect(spelled(['one two three'], ['three', 'two']).pieces).toEqual(['one ']);
    expect(spelled(['one two three'], ['two', 'three']).pieces).toEqual(['one ']);
    expect(spelled(['abc', 'd'], ['bcd', 'abcd']).pieces).toEqual(['', '']);
    // The second is complete while the first may still become one.
    expect(spelled(['abc', 'd'], ['abcd', 'c'])).toMatchObject({ pieces: ['ab'], rest: '' });
  });

  it('[22.10] holds the beginning of a stop string back until it is none', () => {
    expect(spelled(['a', 'S', 'T', 'x', 'y'], ['STOP'])).toEqual({
      pieces: ['a', '', '', 'STx', 'y'],
      hasStopped: false,
      rest: '',
    });
    // A later beginning may follow in it.
    expect(spelled(['aa', 'a', 'b'], ['aab']).pieces).toEqual(['', 'a', '']);
    expect(spelled(['SST', 'OP'], ['STOP']).pieces).toEqual(['S', '']);
  });

  it('[22.10] gives what it held back at the end', () => {
    expect(spelled(['a', 'ST', 'O'], ['STOP', 'TOM'])).toEqual({
      pieces: ['a', '', ''],
      hasStopped: false,
      rest: 'STO',
    });
  });

  it('[22.10] ends before a stop string in the last, incomplete characters', () => {
    const [first] = written.streams.find(({ decoded }) => decoded === '👍🏽👍🏿')!.ids;
    const text = new AnswerText(decode, ['\ufffd']);
    expect([text.push(first!), text.end(), text.hasStopped]).toEqual(['', '', true]);
  });
});

interface NamedText extends CachedText {
  readonly name: string;
}

/** Notes its calls; the likeliest token after `length` tokens of a text is `length`. */
class NotingCache implements KeyValueCache<NamedText> {
  readonly calls: string[] = [];
  private opened = 0;

  open() {
    return { length: 0, name: 'abcdefghijklm'[this.opened++]! };
  }

  close({ name }: NamedText): void {
    this.calls.push(`close ${name}`);
  }

  async extend(text: NamedText, ids: readonly number[]) {
    this.calls.push(`extend ${text.name} ${ids.join(',')}`);
    text.length += ids.length;
    return logitsAfter(text.length);
  }

  async step(texts: readonly NamedText[], ids: readonly number[]) {
    this.calls.push(`step ${texts.map(({ name }, i) => `${name} ${ids[i]}`).join(' ')}`);
    texts.forEach((text) => text.length++);
    return texts.map(({ length }) => logitsAfter(length));
  }
}

const VOCABULARY = 32;

function logitsAfter(length: number): Float32Array {
  const logits = new Float32Array(VOCABULARY);
  logits[length] = 5;
  logits[length + 1] = 4;
  return logits;
}

/** A prompt of so many tokens, each of which is 100. */
const prompt = (count: number, more: Partial<PromptRow> = {}): PromptRow => ({
  ids: Array<number>(count).fill(100),
  maxTokens: 10,
  sampling: greedy,
  stops: [],
  endTokens: [],
  logprobs: false,
  ...more,
});

/** Mask that allows these tokens. */
const only = (...tokens: number[]): Int32Array =>
  Int32Array.of(tokens.reduce((bits, token) => bits | (1 << token), 0));

const piece = (...tokens: number[]): GeneratedText => ({
  text: tokens.map((token) => `${token} `).join(''),
  tokens,
});

describe('A generator', () => {
  let cache: NotingCache;
  beforeEach(() => {
    cache = new NotingCache();
  });

  const generator = (prefill: number, endTokens: number[] = []) =>
    new Generator(cache, (ids) => ids.map((id) => `${id} `).join(''), { endTokens, prefill });

  it.each([0, 1])(
    '[FQ3] An answer ends with an error where the model gives numbers that are none, at temperature %d',
    async (temperature) => {
      const broken = {
        open: () => cache.open(),
        close: () => {},
        extend: (text: ReturnType<typeof cache.open>, ids: readonly number[]) =>
          cache.extend(text, ids).then((logits) => logits.fill(NaN)),
        step: (texts: readonly ReturnType<typeof cache.open>[], ids: readonly number[]) =>
          cache.step(texts, ids),
      };
      const own = new Generator(broken, () => '', { endTokens: [], prefill: 9 });
      const row = prompt(2);
      const [a] = own.start([{ ...row, sampling: { ...row.sampling, temperature } }]);
      const [result] = await own.step([a!]);
      expect(result).toMatchObject({
        message: expect.stringContaining('gave NaN for the next token') as unknown,
      });
    },
  );

  it('[22.13] reads a long prompt in parts, while each other answer gets a token in each step', async () => {
    const own = generator(4);
    const [a] = own.start([prompt(2)]);
    expect(await own.step([a!])).toEqual([piece(2)]);
    const [b] = own.start([prompt(10)]);
    expect(await own.step([a!, b!])).toEqual([piece(3), PENDING]);
    expect(await own.step([a!, b!])).toEqual([piece(4), PENDING]);
    expect(await own.step([a!, b!])).toEqual([piece(5), piece(10)]);
    expect(await own.step([a!, b!])).toEqual([piece(6), piece(11)]);
    expect(cache.calls).toEqual([
      'extend a 100,100',
      'extend b 100,100,100,100',
      'step a 2',
      'extend b 100,100,100,100',
      'step a 3',
      'extend b 100,100',
      'step a 4',
      'step a 5 b 10',
    ]);
  });

  it('[22.13] reads the prompts of a step within one limit together', async () => {
    const own = generator(4);
    const answers = own.start([prompt(3), prompt(3), prompt(1)]);
    expect(await own.step(answers)).toEqual([piece(3), PENDING, piece(1)]);
    expect(await own.step(answers)).toEqual([piece(4), piece(3), piece(2)]);
    expect(cache.calls).toEqual([
      'extend c 100',
      'extend a 100,100,100',
      'extend b 100,100,100',
      'step a 3 c 1',
    ]);
  });

  it('[22.13] lets no long prompt delay short ones, nor these it', async () => {
    const own = generator(4);
    const [long] = own.start([prompt(20)]);
    let short: NonNullable<typeof long>[] = [];
    for (let step = 1; step < 9; step++) {
      short.push(...own.start([prompt(4, { maxTokens: 1 })]));
      const [first, ...others] = await own.step([long!, ...short]);
      expect(first).toBe(PENDING);
      short = short.filter((_, i) => others[i] === PENDING);
      const ended = step - short.length;
      expect(ended).toBe(Math.ceil(step / 2));
    }
    expect(await own.step([long!])).toEqual([piece(20)]);
  });

  it('[22.10] ends an answer at an end token, which is no part of it', async () => {
    const own = generator(9, [7, 4]);
    const [a] = own.start([prompt(2)]);
    await own.step([a!]);
    await own.step([a!]);
    expect(await own.step([a!])).toEqual([
      last({
        text: '',
        tokens: [],
        finishReason: 'stop',
        usage: { promptTokens: 2, completionTokens: 3 },
      }),
    ]);
    own.end(a!);
    expect(cache.calls.at(-1)).toBe('close a');
  });

  it('[22.10] ends an answer with its last token, and one of a single token at once', async () => {
    const own = generator(9);
    const answers = own.start([prompt(2, { maxTokens: 1 }), prompt(5, { maxTokens: 2 })]);
    const usage = { promptTokens: 2, completionTokens: 1 };
    expect(await own.step(answers)).toEqual([
      last({ ...piece(2), finishReason: 'length', usage }),
      piece(5),
    ]);
    expect(await own.step(answers.slice(1))).toEqual([
      last({
        ...piece(6),
        finishReason: 'length',
        usage: { promptTokens: 5, completionTokens: 2 },
      }),
    ]);
  });

  it('[22.10] has no piece while it holds text back, and then all tokens since the last one', async () => {
    const own = generator(9);
    const [a] = own.start([prompt(2, { stops: ['3 4 x', '6 7'] })]);
    expect(await own.step([a!])).toEqual([piece(2)]);
    expect(await own.step([a!])).toEqual([PENDING]);
    expect(await own.step([a!])).toEqual([PENDING]);
    expect(await own.step([a!])).toEqual([piece(3, 4, 5)]);
    expect(await own.step([a!])).toEqual([PENDING]);
    const usage = { promptTokens: 2, completionTokens: 6 };
    expect(await own.step([a!])).toEqual([
      last({ text: '', tokens: [6, 7], finishReason: 'stop', usage }),
    ]);
  });

  it('[22.10] says "stop" when the last token completes a stop string, and gives held text', async () => {
    const own = generator(9);
    const answers = own.start([
      prompt(2, { maxTokens: 2, stops: ['3 '] }),
      prompt(2, { maxTokens: 2, stops: ['3 4'] }),
    ]);
    await own.step(answers);
    const usage = { promptTokens: 2, completionTokens: 2 };
    expect(await own.step(answers)).toEqual([
      last({ text: '', tokens: [3], finishReason: 'stop', usage }),
      last({ text: '3 ', tokens: [3], finishReason: 'length', usage }),
    ]);
  });

  it('[22.10] gives held text when the answer ends, and ends before a stop string there', async () => {
    const own = generator(9, [3]);
    const [a] = own.start([prompt(2, { stops: ['2 3'] })]);
    expect(await own.step([a!])).toEqual([PENDING]);
    const usage = { promptTokens: 2, completionTokens: 2 };
    expect(await own.step([a!])).toEqual([
      last({ text: '2 ', tokens: [2], finishReason: 'stop', usage }),
    ]);

    const incomplete = new Generator(cache, (ids) => '\ufffd'.repeat(ids.length), {
      endTokens: [],
      prefill: 9,
    });
    const [b] = incomplete.start([prompt(2, { maxTokens: 1, stops: ['\ufffd'] })]);
    expect(await incomplete.step([b!])).toEqual([
      last({
        text: '',
        tokens: [2],
        finishReason: 'stop',
        usage: { promptTokens: 2, completionTokens: 1 },
      }),
    ]);
  });

  it('[FZ1] An error in the work for one answer fails this answer alone', async () => {
    const own = new Generator(
      cache,
      (ids) => {
        if (ids.includes(6)) {
          throw new RangeError('too much');
        }
        return ids.map((id) => `${id} `).join('');
      },
      { endTokens: [], prefill: 20 },
    );
    const answers = own.start([prompt(2), prompt(5), prompt(8)]);
    await own.step(answers);
    expect(await own.step(answers)).toEqual([piece(3), new Error('too much'), piece(9)]);
    expect(await own.step([answers[0]!, answers[2]!])).toEqual([piece(4), piece(10)]);
  });

  describe('with grammars', () => {
    const sent: (number | string)[] = [];
    let held: HeldAnswer;
    const grammars = {
      hold: () => {
        held = new HeldAnswer(
          (token) => void sent.push(token),
          () => void sent.push('close'),
        );
        return held;
      },
    };
    const holding = (): Generator =>
      new Generator(
        cache,
        (ids) => ids.map((id) => `${id} `).join(''),
        { endTokens: [], prefill: 20 },
        grammars,
      );

    it('[22.24] An answer waits for its grammar, and others go on', async () => {
      const own = holding();
      const answers = own.start([prompt(2, { grammar: 'a grammar' }), prompt(5)]);
      expect(await own.step(answers)).toEqual([PENDING, piece(5)]);
      expect(await own.step(answers)).toEqual([PENDING, piece(6)]);
      held.receive(only(3, 20));
      // The likeliest is 2, and it reads no token twice.
      expect(await own.step(answers)).toEqual([piece(3), piece(7)]);
      expect(sent.splice(0)).toEqual([3]);
      expect(cache.calls).toEqual([
        'extend a 100,100',
        'extend b 100,100,100,100,100',
        'step b 5',
        'step b 6',
      ]);
      own.end(answers[0]!);
      expect(sent.splice(0)).toEqual(['close']);
    });

    it('[22.24] An answer alone goes on as soon as its grammar is ready', async () => {
      const own = holding();
      const [a] = own.start([prompt(2, { grammar: 'a grammar' })]);
      const first = own.step([a!]);
      setImmediate(() => held.receive(only(2)));
      expect([await first, await own.step([a!])]).toContainEqual([piece(2)]);
      sent.length = 0;
    });

    it('[22.24] A grammar that fails, or fits no token, fails its answer alone', async () => {
      const own = holding();
      const answers = own.start([prompt(2, { grammar: 'a grammar' }), prompt(5)]);
      await own.step(answers);
      const failure = new Error('too large');
      held.fail(failure);
      expect(await own.step(answers)).toEqual([failure, piece(6)]);

      const [c] = own.start([prompt(2, { grammar: 'another' })]);
      held.receive(only());
      expect(await own.step([c!])).toEqual([
        expect.objectContaining({
          message: expect.stringContaining('has no token that continues'),
        }),
      ]);
    });
  });

  it('[22.14] gives the log-probability before the repetition penalty, of each token', async () => {
    const own = generator(9);
    const sampling = { ...greedy, repetitionPenalty: 2 };
    const ids = [100, 2];
    const [a] = own.start([prompt(2, { ids, sampling, logprobs: true })]);
    // The likeliest is a token of the prompt, and the second likeliest is 3.
    const sum = Math.exp(5) + Math.exp(4) + VOCABULARY - 2;
    const logprobs = [{ text: piece(3).text, logprob: expect.closeTo(4 - Math.log(sum), 5) }];
    expect(await own.step([a!])).toEqual([{ ...piece(3), logprobs }]);
  });
});

describe('The cache of a decoder', () => {
  const sessions = new Map<string, Promise<InferenceSession>>();
  const decoderOf = async (file: string): Promise<Decoder> => {
    const known = sessions.get(file) ?? InferenceSession.create(readTiny(`generator/onnx/${file}`));
    sessions.set(file, known);
    return new Decoder(await known, file);
  };

  interface Read {
    readonly ids: readonly number[];
    readonly logits: Float32Array;
  }

  /** Texts that join, grow and leave; returns what each read, and the logits then. */
  async function story(cache: KeyValueCache): Promise<Read[][]> {
    const reads: Read[][] = [];
    const of = new Map<CachedText, Read[]>();
    let word = 3;
    const words = (count: number) =>
      Array.from({ length: count }, () => 3 + (word = (word * 7 + 11) % 400));
    const open = (): CachedText => {
      const text = cache.open();
      of.set(text, []);
      reads.push(of.get(text)!);
      return text;
    };
    const extend = async (text: CachedText, count: number): Promise<void> => {
      const ids = words(count);
      of.get(text)!.push({ ids, logits: (await cache.extend(text, ids)).slice() });
    };
    const steps = async (count: number, ...texts: CachedText[]): Promise<void> => {
      for (let step = 0; step < count; step++) {
        const ids = words(texts.length);
        const logits = await cache.step(texts, ids);
        texts.forEach((text, i) =>
          of.get(text)!.push({ ids: [ids[i]!], logits: logits[i]!.slice() }),
        );
      }
    };
    const [a, b] = [open(), open()];
    await extend(a, 3);
    await steps(2, a);
    // Beyond the first 256 tokens of room.
    await extend(b, 200);
    await steps(1, a);
    await extend(b, 100);
    await steps(3, a, b);
    const c = open();
    await extend(c, 40);
    await steps(4, a, b, c);
    // The one in the middle leaves, and another takes its place.
    cache.close(b);
    await steps(2, a, c);
    const [d, e] = [open(), open()];
    await extend(d, 5);
    await steps(3, a, c, d);
    // One that has read half of its prompt comes to lie before the others.
    await extend(e, 10);
    cache.close(a);
    await steps(3, c, d);
    await extend(e, 7);
    await steps(3, c, d, e);
    cache.close(c);
    // A text that grows beyond the room of the others.
    await extend(d, 290);
    await steps(2, d, e);
    cache.close(d);
    cache.close(e);
    const f = open();
    await extend(f, 4);
    await steps(2, f);
    return reads;
  }

  /** The largest distance to what each text has alone, as a share of the largest number. */
  async function distanceToAlone(decoder: Decoder, reads: readonly Read[][]): Promise<number> {
    let [distance, largest] = [0, 0];
    for (const own of reads) {
      const alone = new GrowingCache(decoder);
      const text = alone.open();
      for (const { ids, logits } of own) {
        const expected = await alone.extend(text, ids);
        expect(logits).toHaveLength(expected.length);
        expected.forEach((value, i) => {
          distance = Math.max(distance, Math.abs(value - logits[i]!));
          largest = Math.max(largest, Math.abs(value));
        });
      }
    }
    return distance / largest;
  }

  const options = { places: 4, context: 512 };

  it.each([
    ['in place', 'model_gqa.onnx', true],
    ['copied', 'model_gqa.onnx', false],
    ['in place', 'model_gqa_lens.onnx', true],
    ['copied', 'model_gqa_lens.onnx', false],
  ])('[22.9] gives each text its own logits, %s in %s', async (_, file, isInPlace) => {
    const decoder = await decoderOf(file);
    const reads = await story(new SharedCache(decoder, options, isInPlace));
    expect(reads.map(({ length }) => length)).toEqual([16, 9, 16, 13, 7, 3]);
    expect(await distanceToAlone(decoder, reads)).toBeLessThan(1e-5);
  });

  it('[22.9] gives each text its own logits, growing', async () => {
    const decoder = await decoderOf('model.onnx');
    const reads = await story(new GrowingCache(decoder));
    expect(await distanceToAlone(decoder, reads)).toBeLessThan(1e-5);
  });

  it.each([
    ['model.onnx', 'growing', GrowingCache],
    ['model_gqa.onnx', 'in place', SharedCache],
    ['model_gqa_lens.onnx', 'in place', SharedCache],
  ])('[22.9] is chosen by trials: for %s it is %s', async (file, kind, type) => {
    const chosen = await cacheFor(await decoderOf(file), options);
    expect(chosen.kind).toBe(kind);
    expect(chosen.cache).toBeInstanceOf(type);
  });

  it('[22.12] is refused for a model that no cache suits', async () => {
    const { session } = await decoderOf('model_gqa.onnx');
    // The attention of this model takes padding for tokens, so that growing doesn't suit it either.
    const run = (feeds: Record<string, Tensor>, how: readonly string[] | object) =>
      'logits' in how
        ? Promise.reject(new Error('the shapes of the caches differ'))
        : session.run(feeds, session.outputNames);
    const own = Object.create(session, { run: { value: run } }) as InferenceSession;
    const refused = cacheFor(new Decoder(own, 'net'), options);
    await expect(refused).rejects.toThrow(ServingLoadError);
    await expect(refused).rejects.toThrow(
      'two texts of different lengths have other results together than alone',
    );
  });

  it('[22.9] keeps texts that step apart from those that step together', async () => {
    const decoder = await decoderOf('model.onnx');
    const cache = new GrowingCache(decoder);
    const [a, b] = [cache.open(), cache.open()];
    await cache.extend(a, [5, 6, 7]);
    await cache.extend(b, [8, 9]);
    await cache.step([a, b], [10, 11]);
    await cache.step([b], [12]);
    const [, logits] = await cache.step([a, b], [13, 14]);

    const alone = new GrowingCache(decoder);
    const expected = await alone.extend(alone.open(), [8, 9, 11, 12, 14]);
    expect(Math.max(...expected.map((value, i) => Math.abs(value - logits![i]!)))).toBeLessThan(
      1e-4,
    );
  });

  it.each<[string, string, (decoder: Decoder) => KeyValueCache]>([
    ['in place', 'model_gqa.onnx', (decoder) => new SharedCache(decoder, options, true)],
    ['copied', 'model_gqa.onnx', (decoder) => new SharedCache(decoder, options, false)],
    ['growing', 'model.onnx', (decoder) => new GrowingCache(decoder)],
  ])('[22.9] frees what a run leaves behind: %s', async (_, file, cacheOf) => {
    const { session } = await decoderOf(file);
    const left: Tensor[] = [];
    const run = async (...asked: Parameters<InferenceSession['run']>) => {
      const { logits, ...others } = await session.run(...asked);
      left.push(...Object.values(others));
      return { logits, ...others };
    };
    const own = Object.create(session, { run: { value: run } }) as InferenceSession;
    const cache = cacheOf(new Decoder(own, 'net'));
    const text = cache.open();
    await cache.extend(text, [5, 6, 7]);
    const ofFirst = [...left];
    expect(ofFirst.length).toBeGreaterThan(0);
    await cache.step([text], [8]);
    expect(ofFirst.map(({ data }) => data.length)).toEqual(ofFirst.map(() => 0));
  });

  it('[22.9] steps on with a runtime whose outputs may not move', async () => {
    const { session } = await decoderOf('model.onnx');
    const run = async (...asked: Parameters<InferenceSession['run']>) => {
      const outputs = await session.run(...asked);
      Object.values(outputs).forEach(({ data }) =>
        markAsUntransferable((data as Float32Array<ArrayBuffer>).buffer),
      );
      return outputs;
    };
    const own = Object.create(session, { run: { value: run } }) as InferenceSession;
    const [cache, expected] = [own, session].map(
      (each) => new GrowingCache(new Decoder(each, 'net')),
    );
    const [text, same] = [cache!.open(), expected!.open()];
    await cache!.extend(text, [5, 6, 7]);
    await expected!.extend(same, [5, 6, 7]);

    expect(await cache!.step([text], [8])).toEqual(await expected!.step([same], [8]));
  });

  it('[22.13] gives a place back before any text was read', async () => {
    const cache = new SharedCache(await decoderOf('model_gqa.onnx'), options, true);
    const [a, b] = [cache.open(), cache.open()];
    cache.close(a);
    const logits = await cache.extend(b, [5, 6]);
    expect(logits).toHaveLength(432);
  });
});

import { readFile } from 'node:fs/promises';
import type { InferenceSession } from 'onnxruntime-common';
import {
  InvalidOutputError,
  last,
  PENDING,
  type SequenceModel,
  type SequenceResult,
  ServingLoadError,
} from '../../index.js';
import { messageOf } from '../../doors/text.js';
import { AnswerText } from './answer-text.js';
import { cacheFor, type CachedText, Decoder, type KeyValueCache } from './key-value-cache.js';
import { sessionOf } from './onnx-session.js';
import { openable, type OnnxFile } from './repository.js';
import { logProbabilityOf, Sampler, type Sampling } from './sampling.js';
import { textDecoder } from './text-tokenizer.js';

/** A prompt as it is sent to the model's thread. */
export interface PromptRow {
  readonly ids: readonly number[];
  /** Most tokens of the answer. */
  readonly maxTokens: number;
  readonly sampling: Sampling;
  readonly stops: readonly string[];
  /** Beside those of the model. */
  readonly endTokens: readonly number[];
  readonly logprobs: boolean;
}

/** A piece of an answer, or a whole one. */
export interface GeneratedText {
  /** Never ends within a character. */
  readonly text: string;
  /** The tokens that the model made since the last piece, without the one that ends an answer. */
  readonly tokens: readonly number[];
  /** Of each token, if the call asks for `logprobs`. */
  readonly logprobs?: readonly TokenLogprob[];
  /**
   * Given in the last piece. `stop`: the model ended its answer, or came to a stop string. `length`: the
   * answer has `maxTokens` tokens.
   */
  readonly finishReason?: 'stop' | 'length';
  /** Given in the last piece. */
  readonly usage?: GenerationUsage;
}

/** How likely the model found a token. */
export interface TokenLogprob {
  /** The text that it completes; empty within a character or a possible stop string. */
  readonly text: string;
  /** The natural logarithm of its probability, before the sampling. */
  readonly logprob: number;
}

/** Counts of tokens, those that begin and end texts included. */
export interface GenerationUsage {
  /** Tokens of the prompt. */
  readonly promptTokens: number;
  /** Tokens of the answer. */
  readonly completionTokens: number;
}

/** The model's files and the options that the thread needs. */
export interface GeneratorFiles {
  /** The serving, for warnings. */
  readonly owner: string;
  /** The model, for errors. */
  readonly name: string;
  readonly model: OnnxFile;
  readonly tokenizer: object;
  readonly tokenizerConfig: object;
  readonly endTokens: readonly number[];
  readonly session: InferenceSession.SessionOptions;
  /** Most answers at a time. */
  readonly places: number;
  /** Most tokens of a prompt and its answer. */
  readonly context: number;
  /** Most prompt tokens that are read between two tokens of the others. */
  readonly prefill: number;
}

/** An answer that is being written. */
interface Answer {
  readonly row: PromptRow;
  readonly cached: CachedText;
  readonly sampler: Sampler;
  readonly text: AnswerText;
  /** The token that the model reads next; undefined while it reads the prompt. */
  next: number | undefined;
  count: number;
  /** Not sent yet. */
  tokens: number[];
  logprobs: TokenLogprob[];
}

const SLOW_CACHES = {
  copied: 'copies its cache with every token, since this version of onnxruntime-node copies inputs',
  growing:
    'returns its whole cache with every token; an export with GroupQueryAttention, as the model ' +
    'builder of onnxruntime-genai makes it, writes to it in place and is faster',
};

/** Runs in a thread of its own: writes all answers together, a token for each at a time. */
export default async function ({
  options,
}: {
  options: Readonly<Record<string, unknown>>;
}): Promise<Generator> {
  const { generation, ...own } = options as { generation: GeneratorFiles };
  const { name, tokenizer, tokenizerConfig } = generation;
  const model = await openable(name, generation.model);
  await refuseDynamicQuantisation(name, model);
  const decode = await textDecoder(tokenizer, tokenizerConfig);
  const decoder = new Decoder(
    await sessionOf(name, model, { ...generation.session, ...own }),
    name,
  );
  const { kind, cache } = await cacheFor(decoder, generation);
  if (kind !== 'in place') {
    process.emitWarning(`${generation.owner} ${SLOW_CACHES[kind]}`);
  }
  const prefill = Math.min(generation.prefill, decoder.mostAtOnce);
  return new Generator(cache, decode, { ...generation, prefill });
}

/** A sequence model: prompts join and answers leave between two steps. */
export class Generator implements SequenceModel<PromptRow, GeneratedText, Answer> {
  private readonly endTokens: ReadonlySet<number>;
  private startsWithShortest = false;

  constructor(
    private readonly cache: KeyValueCache,
    private readonly decode: (ids: readonly number[]) => string,
    private readonly options: Pick<GeneratorFiles, 'endTokens' | 'prefill'>,
  ) {
    this.endTokens = new Set(options.endTokens);
  }

  start(rows: readonly PromptRow[]): Answer[] {
    return rows.map((row) => ({
      row,
      cached: this.cache.open(),
      sampler: new Sampler(row.sampling, row.ids),
      text: new AnswerText(this.decode, row.stops),
      next: undefined,
      count: 0,
      tokens: [],
      logprobs: [],
    }));
  }

  /** Reads a part of the prompts, and makes a token of every other answer. */
  async step(answers: readonly Answer[]): Promise<SequenceResult<GeneratedText>[]> {
    const results = new Map<Answer, SequenceResult<GeneratedText>>();
    const writing = answers.filter(({ next }) => next !== undefined);
    let left = this.options.prefill;
    for (const answer of this.reading(answers)) {
      if (left === 0) {
        break;
      }
      const { row, cached } = answer;
      const ids = row.ids.slice(cached.length, cached.length + left);
      left -= ids.length;
      try {
        const logits = await this.cache.extend(cached, ids);
        if (cached.length === row.ids.length) {
          results.set(answer, this.take(answer, logits));
        }
      } catch (cause) {
        results.set(answer, errorOf(cause));
      }
    }
    if (writing.length > 0) {
      const logits = await this.cache.step(
        writing.map(({ cached }) => cached),
        writing.map(({ next }) => next!),
      );
      writing.forEach((answer, i) => results.set(answer, this.taken(answer, logits[i]!)));
    }
    return answers.map((answer) => results.get(answer) ?? PENDING);
  }

  /**
   * The answers that still read their prompts: in turn the oldest first, and the one with the least
   * left, so that a long prompt delays no short one, and ends nevertheless.
   */
  private reading(answers: readonly Answer[]): readonly Answer[] {
    const reading = answers.filter(({ next }) => next === undefined);
    const left = ({ row, cached }: Answer): number => row.ids.length - cached.length;
    this.startsWithShortest = !this.startsWithShortest;
    return this.startsWithShortest ? reading.toSorted((a, b) => left(a) - left(b)) : reading;
  }

  end({ cached }: Answer): void {
    this.cache.close(cached);
  }

  /** As `take`, with an error that fails this answer alone. */
  private taken(answer: Answer, logits: Float32Array): SequenceResult<GeneratedText> {
    try {
      return this.take(answer, logits);
    } catch (cause) {
      return errorOf(cause);
    }
  }

  private take(answer: Answer, logits: Float32Array): SequenceResult<GeneratedText> {
    const { row, sampler, text } = answer;
    const given = row.logprobs ? logits.slice() : logits;
    const token = sampler.next(logits);
    // The likeliest of numbers that are none would be the first token, again and again.
    if (!(logits[token]! > -Infinity)) {
      return new InvalidOutputError(
        `The model gave ${logits[token]} for the next token of this answer, which is no usable number; ` +
          'a model in half precision may have overflowed: try one of float32',
      );
    }
    answer.next = token;
    answer.count++;
    if (this.endTokens.has(token) || row.endTokens.includes(token)) {
      return finished(answer, text.end(), 'stop');
    }
    answer.tokens.push(token);
    let more = text.push(token);
    const isLast = answer.count === row.maxTokens;
    if (isLast) {
      more += text.end();
    }
    if (row.logprobs) {
      answer.logprobs.push({ text: more, logprob: logProbabilityOf(given, token) });
    }
    if (text.hasStopped || isLast) {
      return finished(answer, more, text.hasStopped ? 'stop' : 'length');
    }
    return more === '' ? PENDING : pieceOf(answer, more);
  }
}

function errorOf(cause: unknown): Error {
  return new Error(messageOf(cause), { cause });
}

function finished(
  answer: Answer,
  text: string,
  finishReason: 'stop' | 'length',
): SequenceResult<GeneratedText> {
  const { row, count } = answer;
  const usage = { promptTokens: row.ids.length, completionTokens: count };
  return last({ ...pieceOf(answer, text), finishReason, usage });
}

function pieceOf(answer: Answer, text: string): GeneratedText {
  const { tokens, logprobs, row } = answer;
  answer.tokens = [];
  answer.logprobs = [];
  return { text, tokens, ...(row.logprobs && { logprobs }) };
}

const QUANTISES = 'DynamicQuantizeLinear';

/** Its results would depend on the other texts of a step, and so would what a model writes. */
async function refuseDynamicQuantisation(name: string, model: string | Uint8Array): Promise<void> {
  const bytes =
    typeof model === 'string'
      ? await readFile(model)
      : Buffer.from(model.buffer, model.byteOffset, model.byteLength);
  if (bytes.includes(QUANTISES)) {
    throw new ServingLoadError(
      `The model of ${name} quantises its activations while it runs (${QUANTISES}), so that an ` +
        'answer would depend on the texts beside it; use an export in fp32, or one that quantises ' +
        'its weights alone (MatMulNBits)',
    );
  }
}

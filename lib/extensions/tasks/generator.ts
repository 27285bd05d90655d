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
import type { Grammar } from './answer-form.js';
import { AnswerText } from './answer-text.js';
import { Grammars, type HeldAnswer } from './grammars.js';
import { cacheFor, type CachedText, Decoder, type KeyValueCache } from './key-value-cache.js';
import { sessionOf } from './onnx-session.js';
import { openable, type OnnxFile } from './repository.js';
import { allowOnly, logProbabilityOf, Sampler, type Sampling } from './sampling.js';
import { textDecoder } from './text-tokenizer.js';
import type { CallFrame, ToolCall } from './tool-calls.js';

/** Prompt as sent to the model's thread. */
export interface PromptRow {
  readonly ids: readonly number[];
  readonly maxTokens: number;
  readonly sampling: Sampling;
  readonly stops: readonly string[];
  /** Tokens in addition to the model's. */
  readonly endTokens: readonly number[];
  readonly logprobs: boolean;
  /** Grammar that holds the answer, if any. */
  readonly grammar?: Grammar | undefined;
  /** Frame of calls to take out of the answer's text, if any. */
  readonly frame?: CallFrame | undefined;
}

/** Answer, whole or a piece. */
export interface GeneratedText {
  /** Text that never ends within a character. */
  readonly text: string;
  /** Tokens made since the last piece, without an answer's end token. */
  readonly tokens: readonly number[];
  /** Entry for each token, if the call asks for `logprobs`; also for an end token that completes text. */
  readonly logprobs?: readonly TokenLogprob[];
  /** Whole calls of tools, if the model wrote any in this piece. */
  readonly toolCalls?: readonly ToolCall[];
  /**
   * Reason, in the last piece. `stop`: the model ended its answer, or wrote a stop string.
   * `toolCalls`: it ended its answer, which calls tools. `length`: the answer has `maxTokens` tokens.
   */
  readonly finishReason?: FinishReason;
  /** Counts, in the last piece. */
  readonly usage?: GenerationUsage;
}

/** Reason for an answer's end. */
export type FinishReason = 'stop' | 'length' | 'toolCalls';

/** Probability of a token. */
export interface TokenLogprob {
  /** Text that it completes; empty within a character or a possible stop string. */
  readonly text: string;
  /** Natural logarithm of its probability, before sampling. */
  readonly logprob: number;
}

/** Counts of tokens, including those that begin and end texts. */
export interface GenerationUsage {
  /** Tokens of the prompt. */
  readonly promptTokens: number;
  /** Tokens of the answer. */
  readonly completionTokens: number;
}

export interface GeneratorFiles {
  readonly owner: string;
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
  /** Most prompt tokens read between two tokens of the others. */
  readonly prefill: number;
}

interface Answer {
  readonly row: PromptRow;
  readonly cached: CachedText;
  readonly sampler: Sampler;
  readonly text: AnswerText;
  /** Next token that the model reads; undefined while it reads the prompt. */
  next: number | undefined;
  count: number;
  /** Tokens not sent yet. */
  tokens: number[];
  logprobs: TokenLogprob[];
  readonly held: HeldAnswer | undefined;
  /** Logits that wait for the grammar. */
  waiting: Float32Array | undefined;
}

const SLOW_CACHES = {
  copied: 'copies its cache with every token, since this version of onnxruntime-node copies inputs',
  growing:
    'returns its whole cache with every token; an export with GroupQueryAttention, as the model ' +
    'builder of onnxruntime-genai makes it, writes to it in place and is faster',
};

/** Runs in its own thread. */
export default async function ({
  options,
}: {
  options: Readonly<Record<string, unknown>>;
}): Promise<Generator> {
  const { generation, sessions, ...own } = options as {
    generation: GeneratorFiles;
    sessions?: readonly [bigint];
  };
  const { name, tokenizer, tokenizerConfig } = generation;
  const model = await openable(name, generation.model);
  await refuseDynamicQuantisation(name, model);
  const decode = await textDecoder(tokenizer, tokenizerConfig);
  const decoder = new Decoder(
    await sessionOf(name, model, { ...generation.session, ...own }, sessions?.[0]),
    name,
  );
  const { kind, cache } = await cacheFor(decoder, generation);
  if (kind !== 'in place') {
    process.emitWarning(`${generation.owner} ${SLOW_CACHES[kind]}`);
  }
  const prefill = Math.min(generation.prefill, decoder.mostAtOnce);
  const grammars = new Grammars({
    owner: generation.owner,
    tokenizer,
    endTokens: generation.endTokens,
  });
  return new Generator(cache, decode, { ...generation, prefill }, grammars);
}

/** Milliseconds for a grammar's thread, which is ready before most models are. */
const GRACE = 2;
/** Milliseconds if no other answer can go on. */
const GRACE_ALONE = 20;

/** Sequence model: prompts join and answers leave between steps. */
export class Generator implements SequenceModel<PromptRow, GeneratedText, Answer> {
  private readonly endTokens: ReadonlySet<number>;
  private startsWithShortest = false;

  constructor(
    private readonly cache: KeyValueCache,
    private readonly decode: (ids: readonly number[]) => string,
    private readonly options: Pick<GeneratorFiles, 'endTokens' | 'prefill'>,
    private readonly grammars?: Pick<Grammars, 'hold'>,
  ) {
    this.endTokens = new Set(options.endTokens);
  }

  start(rows: readonly PromptRow[]): Answer[] {
    return rows.map((row) => ({
      row,
      cached: this.cache.open(),
      sampler: new Sampler(row.sampling, row.ids),
      text: new AnswerText(this.decode, row.stops, row.frame),
      next: undefined,
      count: 0,
      tokens: [],
      logprobs: [],
      held: this.heldBy(row),
      waiting: undefined,
    }));
  }

  private heldBy({ grammar, endTokens }: PromptRow): HeldAnswer | undefined {
    return grammar === undefined
      ? undefined
      : this.grammars!.hold(grammar, [...this.endTokens, ...endTokens]);
  }

  /** Reads parts of prompts, and makes a token of every other answer. */
  async step(answers: readonly Answer[]): Promise<SequenceResult<GeneratedText>[]> {
    const results = new Map<Answer, SequenceResult<GeneratedText>>();
    const free = answers.filter(({ waiting }) => !waiting);
    const writing = free.filter(({ next }) => next !== undefined);
    let left = this.options.prefill;
    for (const answer of this.reading(free)) {
      if (left === 0) {
        break;
      }
      const { row, cached } = answer;
      const ids = row.ids.slice(cached.length, cached.length + left);
      left -= ids.length;
      try {
        const logits = await this.cache.extend(cached, ids);
        if (cached.length === row.ids.length) {
          this.offer(answer, logits, results);
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
      writing.forEach((answer, i) => this.offer(answer, logits[i]!, results));
    }
    const waiting = answers.filter((answer) => answer.waiting);
    if (waiting.length > 0) {
      await this.takeWaiting(waiting, free.length === 0, results);
    }
    return answers.map((answer) => results.get(answer) ?? PENDING);
  }

  /** Takes a token, unless the answer waits for its grammar. */
  private offer(
    answer: Answer,
    logits: Float32Array,
    results: Map<Answer, SequenceResult<GeneratedText>>,
  ): void {
    if (answer.held) {
      answer.waiting = logits.slice();
    } else {
      results.set(answer, this.taken(answer, logits));
    }
  }

  /** Takes tokens of answers whose grammars are ready soon. Others let the model go on. */
  private async takeWaiting(
    waiting: readonly Answer[],
    areAll: boolean,
    results: Map<Answer, SequenceResult<GeneratedText>>,
  ): Promise<void> {
    const late = waiting.filter(({ held }) => !held!.isReady);
    if (late.length > 0) {
      const arrivals = late.map(({ held }) => held!.ready());
      await within(areAll ? GRACE_ALONE : GRACE, Promise.all(arrivals));
    }
    for (const answer of waiting) {
      const { held, waiting: logits } = answer;
      if (held!.failure) {
        results.set(answer, held!.failure);
      } else if (held!.mask) {
        answer.waiting = undefined;
        results.set(answer, this.taken(answer, logits!));
      }
    }
  }

  /**
   * Answers that still read their prompts: by turns the oldest first and the shortest rest first,
   * so that long prompts delay no short ones, and still end.
   */
  private reading(answers: readonly Answer[]): readonly Answer[] {
    const reading = answers.filter(({ next }) => next === undefined);
    const left = ({ row, cached }: Answer): number => row.ids.length - cached.length;
    this.startsWithShortest = !this.startsWithShortest;
    return this.startsWithShortest ? reading.toSorted((a, b) => left(a) - left(b)) : reading;
  }

  end({ cached, held }: Answer): void {
    held?.close();
    this.cache.close(cached);
  }

  /** Calls `take`; an error fails only this answer. */
  private taken(answer: Answer, logits: Float32Array): SequenceResult<GeneratedText> {
    try {
      return this.take(answer, logits);
    } catch (cause) {
      return errorOf(cause);
    }
  }

  private take(answer: Answer, logits: Float32Array): SequenceResult<GeneratedText> {
    const { row, sampler, text, held } = answer;
    const given = row.logprobs ? logits.slice() : logits;
    if (held) {
      allowOnly(logits, held.mask!);
    }
    const token = sampler.next(logits);
    if (held?.mask!.every((bits) => bits === 0)) {
      return new InvalidOutputError(
        'The model has no token that continues this answer in its form; its vocabulary lacks characters',
      );
    }
    // Among invalid numbers, the first token would always be likeliest.
    if (!(logits[token]! > -Infinity)) {
      return new InvalidOutputError(
        `The model gave ${logits[token]} for the next token of this answer, which is no usable number; ` +
          'a model in half precision may have overflowed: try one of float32',
      );
    }
    answer.next = token;
    answer.count++;
    if (this.endTokens.has(token) || row.endTokens.includes(token)) {
      const rest = text.end();
      if (row.logprobs && rest !== '') {
        answer.logprobs.push({ text: rest, logprob: logProbabilityOf(given, token) });
      }
      return finished(answer, rest, 'stop');
    }
    held?.accept(token);
    answer.tokens.push(token);
    let more = text.push(token);
    const isLast = answer.count === row.maxTokens;
    if (text.hasStopped || isLast) {
      more += text.end();
    }
    if (row.logprobs) {
      answer.logprobs.push({ text: more, logprob: logProbabilityOf(given, token) });
    }
    if (text.hasStopped || isLast) {
      return finished(answer, more, text.hasStopped ? 'stop' : 'length');
    }
    return more === '' && !text.hasNewCalls ? PENDING : pieceOf(answer, more);
  }
}

/** Ends with the work, or earlier after this time. */
async function within(milliseconds: number, work: Promise<unknown>): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const end = new Promise<void>((resolve) => (timer = setTimeout(resolve, milliseconds)));
  await Promise.race([work, end]);
  clearTimeout(timer);
}

function errorOf(cause: unknown): Error {
  return new Error(messageOf(cause), { cause });
}

function finished(
  answer: Answer,
  text: string,
  reason: 'stop' | 'length',
): SequenceResult<GeneratedText> {
  const { row, count, text: written } = answer;
  const usage = { promptTokens: row.ids.length, completionTokens: count };
  const finishReason = written.hasCalled && reason === 'stop' ? 'toolCalls' : reason;
  return last({ ...pieceOf(answer, text), finishReason, usage });
}

function pieceOf(answer: Answer, text: string): GeneratedText {
  const { tokens, logprobs, row } = answer;
  const toolCalls = answer.text.takeCalls();
  answer.tokens = [];
  answer.logprobs = [];
  return {
    text,
    tokens,
    ...(row.logprobs && { logprobs }),
    ...(toolCalls.length > 0 && { toolCalls }),
  };
}

const QUANTISES = 'DynamicQuantizeLinear';

/** Dynamic quantisation makes answers depend on a step's other texts. */
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

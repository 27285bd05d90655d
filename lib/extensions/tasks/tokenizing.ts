import { isRecord } from '../../doors/options.js';
import { messageOf } from '../../doors/text.js';
import { scriptOfThread } from '../../encoding/entry-script.js';
import { JobThread } from '../../encoding/job-thread.js';
import { charactersOf, type Conversation } from './chat.js';
import {
  type LimitsOfTexts,
  type TextFiles,
  type TextLimits,
  type TextTokenizer,
  textTokenizer,
  type Tokens,
} from './text-tokenizer.js';

/**
 * Characters that take a few milliseconds: 5 ms for spaces, less than 1 ms for words. More would
 * hold the event loop.
 */
const MOST_HERE = 500;

/** Characters of short texts, in one turn of the event loop, that take about a millisecond. */
const MOST_IN_TURN = 1500;

/** Characters that the thread tokenizes between two messages. */
const MOST_TOGETHER = 4000;

/** Structured clones for the thread. */
export interface ThreadFiles {
  readonly owner: string;
  readonly name: string;
  /** Content of tokenizer.json. */
  readonly tokenizer: Uint8Array;
  readonly ofTokenizer: Record<string, unknown>;
  readonly lowers: boolean;
  readonly limits: LimitsOfTexts;
  /** Chat template, if the model answers conversations. */
  readonly template: string | undefined;
}

export type Job =
  | { readonly text: string; readonly before?: string | undefined }
  | { readonly text: string; readonly other: string }
  | Conversation;

interface Call {
  readonly signal: AbortSignal;
}

/**
 * @param template of conversations, if the task answers them
 * @throws ServingLoadError if the tokenizer is unusable, or without the library
 */
export async function tokenizing(
  files: TextFiles,
  limits: TextLimits,
  template?: string,
): Promise<Tokenizing> {
  const { owner, tokenizerJson, tokenizerFile: tokenizer, ofTokenizer, fetching } = files;
  const { name } = files.repository;
  const { lowers } = files.sentences;
  const begin = performance.now();
  const here = await textTokenizer({ name, tokenizerJson, ofTokenizer, lowers }, limits);
  if (lacksCharacters(tokenizerJson['normalizer'])) {
    fetching.warn(
      'has a tokenizer.json without the table of its normalizer Precompiled, so that texts with ' +
        'rare characters, such as zero-width joiners, get other tokens than in Python',
    );
  }
  fetching.log(`has the tokenizer of ${name}, after ${Math.round(performance.now() - begin)} ms`);
  const ofThread = { owner, name, tokenizer, ofTokenizer, lowers, limits: limits.limits, template };
  const script = scriptFor(fetching);
  const thread =
    script &&
    new JobThread<Job, Tokens, ThreadFiles>({
      script,
      name: 'serving texts',
      given: ofThread,
      lost: `${owner}: the thread that tokenizes texts has ended`,
      shareOf: (job) => charactersIn(job) / MOST_TOGETHER,
    });
  return new Tokenizing(here, thread);
}

/** True for a normalizer without its table, as from older converters. */
function lacksCharacters(normalizer: unknown): boolean {
  if (!isRecord(normalizer)) {
    return false;
  }
  const { type, precompiled_charsmap: table, normalizers: parts } = normalizer;
  return type === 'Precompiled' ? !table : Array.isArray(parts) && parts.some(lacksCharacters);
}

/** Undefined in a bundled application. */
function scriptFor({ warn }: TextFiles['fetching']): URL | undefined {
  try {
    return scriptOfThread('extensions/tasks/tokenizer-thread');
  } catch (cause) {
    warn(`tokenizes long texts on the event loop, which they hold: ${messageOf(cause)}`);
    return undefined;
  }
}

function charactersIn(job: Job): number {
  return 'messages' in job
    ? charactersOf(job)
    : job.text.length + (('other' in job ? job.other : job.before)?.length ?? 0);
}

/** Share of its time that the event loop works; a thread takes a core from the model. */
const BUSY = 0.5;

/** Milliseconds from one look at the event loop's work to the next. */
const BETWEEN_LOOKS = 100;

class LoopLoad {
  private last = performance.eventLoopUtilization();
  private lookedAt = performance.now();
  private share = 0;

  get isHigh(): boolean {
    const now = performance.now();
    if (now - this.lookedAt > BETWEEN_LOOKS) {
      const { last } = this;
      this.last = performance.eventLoopUtilization();
      this.share = performance.eventLoopUtilization(this.last, last).utilization;
      this.lookedAt = now;
    }
    return this.share > BUSY;
  }
}

/**
 * Tokenizes short texts immediately. A thread tokenizes long ones, and many at the same time if the
 * event loop has much other work.
 */
export class Tokenizing {
  private readonly load = new LoopLoad();
  /** Characters tokenized here in this turn of the event loop. */
  private inTurn = 0;

  constructor(
    private readonly here: TextTokenizer,
    private readonly thread: JobThread<Job, Tokens, ThreadFiles> | undefined,
  ) {}

  get limits(): TextLimits {
    return this.here.limits;
  }

  /** See `TextTokenizer.lengthBefore`. */
  lengthBefore(text: string): number {
    return this.here.lengthBefore(text);
  }

  get separatesPairs(): boolean {
    return this.here.separatesPairs;
  }

  /** See `TextTokenizer.encode`. */
  encode(call: Call, text: string, before = ''): Tokens | Promise<Tokens> {
    this.limits.checkCharacters(text.length + before.length);
    const job = { text, before };
    return this.threadFor(job)?.run(job, call.signal) ?? this.here.encode(text, before);
  }

  encodePair(call: Call, text: string, other: string): Tokens | Promise<Tokens> {
    this.limits.checkCharacters(text.length);
    this.limits.checkCharacters(other.length);
    const job = { text, other };
    return this.threadFor(job)?.run(job, call.signal) ?? this.here.encodePair(text, other);
  }

  encodeChat(call: Call, job: Conversation): Promise<Tokens> {
    this.limits.checkCharacters(charactersIn(job));
    // The thread exists: its script is next to the model's, without which nothing starts.
    return this.thread!.run(job, call.signal);
  }

  /** Undefined if the text is to be tokenized here. */
  private threadFor(job: Job): JobThread<Job, Tokens, ThreadFiles> | undefined {
    const { thread } = this;
    const characters = charactersIn(job);
    if (characters > MOST_HERE) {
      return thread;
    }
    if (this.inTurn === 0) {
      setImmediate(() => (this.inTurn = 0));
    }
    this.inTurn += characters;
    if (this.inTurn <= MOST_IN_TURN || !this.load.isHigh) {
      return undefined;
    }
    // Its start takes longer than these texts.
    thread?.warmUp({ text: '.' });
    return thread?.isWarm ? thread : undefined;
  }
}

/** Continues immediately with a short text's tokens, which costs no turn. */
export function withTokens<Result>(
  tokens: Tokens | Promise<Tokens>,
  then: (tokens: Tokens) => Result,
): Result | Promise<Result> {
  return tokens instanceof Promise ? tokens.then(then) : then(tokens);
}

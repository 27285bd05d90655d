import { MessageChannel, type MessagePort, Worker } from 'node:worker_threads';
import { ServingUnavailableError } from '../../index.js';
import { fromWire, isRecord, messageOf, onAbort, type WireError } from '../../internal.js';
import type { Message } from './chat.js';
import { taskScript } from './entry-script.js';
import {
  type LimitsOfTexts,
  type TextFiles,
  type TextLimits,
  type TextTokenizer,
  textTokenizer,
  type Tokens,
} from './text-tokenizer.js';

/**
 * Characters that are tokenized in a few milliseconds, whatever they are: 11 ms for spaces, and 1 to
 * 2 ms for words. Longer texts would hold the event loop.
 */
const MOST_HERE = 1000;

/** Milliseconds after which a thread without work ends. */
const IDLE = 300_000;

/** What the thread needs, as structured clones. */
export interface ThreadFiles {
  /** The serving with its task, for errors. */
  readonly owner: string;
  /** The repository, for errors. */
  readonly name: string;
  /** The content of tokenizer.json. */
  readonly tokenizer: Uint8Array;
  /** The content of tokenizer_config.json. */
  readonly ofTokenizer: Record<string, unknown>;
  /** Whether texts are put in lower case before they become tokens. */
  readonly lowers: boolean;
  readonly limits: LimitsOfTexts;
  /** The chat template, of a model that answers conversations. */
  readonly template: string | undefined;
}

/** A text, the two of a pair, or a conversation. */
export type Job =
  | { readonly text: string; readonly before?: string | undefined }
  | { readonly text: string; readonly other: string }
  | { readonly messages: readonly Message[] };

/** The thread's answer. */
export type Done = { readonly tokens: Tokens } | { readonly error: WireError };

/** What `preprocess` knows of its call. */
interface Call {
  readonly signal: AbortSignal;
}

/**
 * Makes the tokenizer of a model's files.
 *
 * @param template of conversations, if the task answers them
 * @throws ServingLoadError if it cannot be used, or without the library
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
  return new Tokenizing(here, script && new TokenizerThread(script, ofThread));
}

/** True for a normalizer whose table was left out, as by older converters. */
function lacksCharacters(normalizer: unknown): boolean {
  if (!isRecord(normalizer)) {
    return false;
  }
  const { type, precompiled_charsmap: table, normalizers: parts } = normalizer;
  return type === 'Precompiled' ? !table : Array.isArray(parts) && parts.some(lacksCharacters);
}

/** In a bundled application it is missing. */
function scriptFor({ warn }: TextFiles['fetching']): URL | undefined {
  try {
    return taskScript('tokenizer-thread');
  } catch (cause) {
    warn(`tokenizes long texts on the event loop, which they hold: ${messageOf(cause)}`);
    return undefined;
  }
}

/** Tokenizes short texts immediately, and long texts and conversations in a thread. */
export class Tokenizing {
  constructor(
    private readonly here: TextTokenizer,
    private readonly thread: TokenizerThread | undefined,
  ) {}

  get limits(): TextLimits {
    return this.here.limits;
  }

  /** As `TextTokenizer.lengthBefore`. */
  lengthBefore(text: string): number {
    return this.here.lengthBefore(text);
  }

  /** As `TextTokenizer.encode`. */
  encode(call: Call, text: string, before = ''): Tokens | Promise<Tokens> {
    const characters = text.length + before.length;
    this.limits.checkCharacters(characters);
    return characters > MOST_HERE && this.thread
      ? this.thread.run({ text, before }, call.signal)
      : this.here.encode(text, before);
  }

  /** As `encode`, with the second text of a pair. */
  encodePair(call: Call, text: string, other: string): Tokens | Promise<Tokens> {
    this.limits.checkCharacters(text.length);
    this.limits.checkCharacters(other.length);
    return text.length + other.length > MOST_HERE && this.thread
      ? this.thread.run({ text, other }, call.signal)
      : this.here.encodePair(text, other);
  }

  /** The tokens of a conversation, as the chat template writes it. */
  encodeChat(call: Call, messages: readonly Message[]): Promise<Tokens> {
    const characters = messages.reduce(
      (sum, { role, content }) => sum + role.length + content.length,
      0,
    );
    this.limits.checkCharacters(characters);
    // The model's own script, which does not start without it, is next to the thread's.
    return this.thread!.run({ messages }, call.signal);
  }
}

interface WaitingJob {
  readonly job: Job;
  readonly resolve: (tokens: Tokens) => void;
  readonly reject: (reason: unknown) => void;
  readonly stopListening: () => void;
}

interface Running {
  readonly worker: Worker;
  readonly port: MessagePort;
}

/** Goes on with tokens: immediately with those of a short text, which costs no turn. */
export function withTokens<Result>(
  tokens: Tokens | Promise<Tokens>,
  then: (tokens: Tokens) => Result,
): Result | Promise<Result> {
  return tokens instanceof Promise ? tokens.then(then) : then(tokens);
}

/** A thread that begins with the first job, does one at a time, and ends when it has had none for long. */
export class TokenizerThread {
  private readonly waiting = new Set<WaitingJob>();
  private current: WaitingJob | undefined;
  private running: Running | undefined;
  private idle: NodeJS.Timeout | undefined;

  constructor(
    private readonly script: URL,
    private readonly files: ThreadFiles,
  ) {}

  /**
   * @param signal drops the job, unless it has begun
   * @throws what the tokenizer and the chat template throw
   * @throws ServingUnavailableError if the thread ends meanwhile
   */
  run(job: Job, signal: AbortSignal): Promise<Tokens> {
    return new Promise((resolve, reject) => {
      const stopListening = onAbort(signal, (reason) => {
        this.waiting.delete(waiting);
        reject(reason);
      });
      const waiting: WaitingJob = { job, resolve, reject, stopListening };
      if (!signal.aborted) {
        this.waiting.add(waiting);
        this.next();
      }
    });
  }

  private next(): void {
    const [waiting] = this.waiting;
    if (this.current || !waiting) {
      return;
    }
    this.waiting.delete(waiting);
    this.current = waiting;
    clearTimeout(this.idle);
    const { worker, port } = (this.running ??= this.start());
    worker.ref();
    port.postMessage(waiting.job);
  }

  private start(): Running {
    const { port1: port, port2 } = new MessageChannel();
    const worker = new Worker(this.script, {
      workerData: { files: this.files, port: port2 },
      transferList: [port2],
      name: 'serving texts',
    });
    let cause: unknown;
    worker.on('error', (error) => (cause = error));
    worker.once('exit', () => {
      port.close();
      this.running = undefined;
      this.finish(({ reject }) =>
        reject(
          new ServingUnavailableError(
            `${this.files.owner}: the thread that tokenizes long texts has ended`,
            { cause },
          ),
        ),
      );
    });
    port.on('message', (done: Done) =>
      this.finish(({ resolve, reject }) =>
        'error' in done ? reject(fromWire(done.error)) : resolve(done.tokens),
      ),
    );
    // The thread itself keeps the process alive, and only while it has a job.
    port.unref();
    return { worker, port };
  }

  private finish(answer: (job: WaitingJob) => void): void {
    const { current, running } = this;
    this.current = undefined;
    if (current) {
      current.stopListening();
      answer(current);
    }
    this.next();
    if (running && !this.current) {
      running.worker.unref();
      this.idle = setTimeout(() => void running.worker.terminate(), IDLE).unref();
    }
  }
}

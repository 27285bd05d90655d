import { Worker } from 'node:worker_threads';
import { InvalidInputError, ServingUnavailableError } from '../../index.js';
import { scriptOfThread } from '../../encoding/entry-script.js';
import type { Grammar } from './answer-form.js';
import { grammarLibrary } from './grammar-engine.js';

/** Structured clones for the thread. */
export interface GrammarFiles {
  readonly owner: string;
  /** Content of tokenizer.json. */
  readonly tokenizer: object;
  readonly endTokens: readonly number[];
}

/** Opens a grammar, follows it by a token, or closes it. */
export type ToThread =
  | { readonly id: number; readonly grammar: Grammar; readonly endTokens: readonly number[] }
  | { readonly id: number; readonly token: number }
  | { readonly id: number; readonly isClosed: true };

/** Tokens that may follow, why the grammar is refused, or the failure that ends the thread. */
export type FromThread =
  | { readonly id: number; readonly mask: Int32Array }
  | { readonly id: number; readonly refused: string }
  | { readonly id: number; readonly error: string };

/** Far more milliseconds than a grammar or a token takes. */
const MOST_TIME = 30_000;
/** Milliseconds until an idle thread ends. */
const IDLE = 300_000;

/**
 * Grammars of a partition's answers, in a thread of their own: a large one takes a second to compile,
 * and the next token's mask is made while the model runs.
 */
export class Grammars {
  private worker: Worker | undefined;
  private readonly open = new Map<number, HeldAnswer>();
  /** Messages that the thread has not answered, by answer. It works on the first. */
  private unanswered: number[] = [];
  private count = 0;
  private timer: NodeJS.Timeout | undefined;

  /** @param mostTime milliseconds for a grammar or a token */
  constructor(
    private readonly files: GrammarFiles,
    private readonly mostTime = MOST_TIME,
  ) {}

  /** @param endTokens of the answer, which may end it where the grammar ends */
  hold(grammar: Grammar, endTokens: readonly number[]): HeldAnswer {
    const id = this.count++;
    const answer = new HeldAnswer(
      (token) => this.send({ id, token }),
      () => this.close(id),
    );
    this.open.set(id, answer);
    this.worker ??= this.start();
    this.send({ id, grammar, endTokens });
    return answer;
  }

  /** Ends the thread. */
  async end(): Promise<void> {
    clearTimeout(this.timer);
    await this.worker?.terminate();
  }

  private start(): Worker {
    const { owner, ...files } = this.files;
    const worker = new Worker(scriptOfThread('extensions/tasks/grammar-thread'), {
      name: 'serving grammars',
      workerData: { ...files, file: grammarLibrary() },
    });
    worker.unref();
    worker.on('message', (message: FromThread) => {
      if (this.worker !== worker) {
        return;
      }
      this.unanswered.shift();
      const answer = this.open.get(message.id);
      if (answer && 'mask' in message) {
        answer.receive(message.mask);
      } else if (answer && 'refused' in message) {
        this.open.delete(message.id);
        answer.fail(new InvalidInputError(`${owner} ${message.refused}`));
      } else if ('error' in message) {
        answer?.fail(new Error(`${owner} could not hold its answer to a form: ${message.error}`));
        this.lose(worker);
      }
      this.watch();
    });
    let cause: unknown;
    worker.on('error', (error) => (cause = error));
    worker.once('exit', () => this.lose(worker, cause));
    return worker;
  }

  private send(message: Exclude<ToThread, { readonly isClosed: true }>): void {
    const { worker } = this;
    worker?.postMessage(message);
    // Otherwise its time runs already.
    if (worker && this.unanswered.push(message.id) === 1) {
      this.watch();
    }
  }

  private close(id: number): void {
    this.open.delete(id);
    this.worker?.postMessage({ id, isClosed: true } satisfies ToThread);
    if (this.unanswered.length === 0) {
      this.watch();
    }
  }

  /** Ends the thread if it works for too long, or has had no work for long. */
  private watch(): void {
    clearTimeout(this.timer);
    const { worker } = this;
    const [id] = this.unanswered;
    if (!worker || (id === undefined && this.open.size > 0)) {
      return;
    }
    this.timer = setTimeout(
      () => {
        const slow = id === undefined ? undefined : this.open.get(id);
        slow?.fail(
          new InvalidInputError(
            `${this.files.owner} was given a form that takes more than ${this.mostTime / 1000} seconds to ` +
              'prepare; describe less of the answer',
          ),
        );
        void worker.terminate();
        this.lose(worker);
      },
      id === undefined ? IDLE : this.mostTime,
    ).unref();
  }

  private lose(worker: Worker, cause?: unknown): void {
    if (this.worker !== worker) {
      return;
    }
    this.worker = undefined;
    clearTimeout(this.timer);
    for (const answer of this.open.values()) {
      answer.fail(
        new ServingUnavailableError(
          `${this.files.owner}: the thread that holds answers to forms has ended; call again`,
          { cause },
        ),
      );
    }
    this.open.clear();
    this.unanswered = [];
  }
}

/** Answer that a grammar holds. */
export class HeldAnswer {
  /** Tokens that may follow; undefined while it is made. */
  mask: Int32Array | undefined;
  failure: Error | undefined;
  private listeners: (() => void)[] = [];

  constructor(
    private readonly send: (token: number) => void,
    /** Frees the grammar's place. */
    readonly close: () => void,
  ) {}

  /** True if `mask` or `failure` is there. */
  get isReady(): boolean {
    return (this.mask ?? this.failure) !== undefined;
  }

  /** Ends when `isReady`. */
  async ready(): Promise<void> {
    if (!this.isReady) {
      await new Promise<void>((resolve) => this.listeners.push(resolve));
    }
  }

  /** Goes on behind a token that `mask` allows. */
  accept(token: number): void {
    this.mask = undefined;
    this.send(token);
  }

  receive(mask: Int32Array): void {
    this.mask = mask;
    this.arrive();
  }

  fail(failure: Error): void {
    this.failure ??= failure;
    this.arrive();
  }

  private arrive(): void {
    const { listeners } = this;
    this.listeners = [];
    listeners.forEach((listener) => listener());
  }
}

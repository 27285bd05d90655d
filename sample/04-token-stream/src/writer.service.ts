import { BadRequestException, Injectable, type MessageEvent } from '@nestjs/common';
import { InjectServing, Serving, type Steps } from 'nestjs-serving';
import { concat, defer, map, type Observable, of, tap } from 'rxjs';
import { ChatTokenizer } from './chat-tokenizer.js';
import { GenerateQuery } from './generate.query.js';
import type { Prompt } from './writer.model.js';

/** The last event of an answer. */
export interface Done {
  /** Text that was held back as an unfinished character. */
  readonly text: string;
  readonly promptTokens: number;
  readonly tokens: number;
  /** Whether the model ended its answer, or was stopped at `maxTokens`. */
  readonly reason: 'end' | 'length';
}

/** The most tokens of a prompt, the conversation around it included. */
const longest = 512;

@Injectable()
export class WriterService {
  constructor(
    private readonly tokenizer: ChatTokenizer,
    @InjectServing('writer') private readonly writer: Serving<Prompt, Steps<number>>,
  ) {}

  /**
   * The answer in pieces of text, and an event `done` at its end. To unsubscribe frees the row in
   * the model.
   */
  write({ prompt, ...options }: GenerateQuery): Observable<MessageEvent> {
    const tokens = this.tokenizer.encode(prompt);
    if (tokens.length > longest) {
      throw new BadRequestException(
        `The prompt has ${tokens.length} tokens, and ${longest} is the most.`,
      );
    }
    return defer(() => this.stream(tokens, options));
  }

  private stream(
    tokens: readonly number[],
    options: Omit<GenerateQuery, 'prompt'>,
  ): Observable<MessageEvent> {
    const text = this.tokenizer.createTextStream();
    let count = 0;
    const pieces$ = this.writer.stream({ tokens, endToken: this.tokenizer.end, ...options }).pipe(
      tap(() => (count += 1)),
      map(({ output }) => ({ data: { text: text.push(output) } })),
    );
    const done = (): Done => ({
      text: text.end(),
      promptTokens: tokens.length,
      tokens: count,
      reason: count < options.maxTokens ? 'end' : 'length',
    });
    return concat(
      pieces$,
      defer(() => of({ type: 'done', data: done() })),
    );
  }
}

import { Injectable, type MessageEvent } from '@nestjs/common';
import { InjectServing } from 'nestjs-serving';
import { concatMap, type Observable } from 'rxjs';
import { GenerateQuery } from './generate.query.js';
import type { Writer } from './writer.serving.js';

/** A piece of an answer. */
export interface Piece {
  readonly text: string;
  readonly tokens: number;
}

/** The last event of an answer. */
export interface Done {
  readonly promptTokens: number;
  /** The token that ended the answer included. */
  readonly tokens: number;
  /** Whether the model ended its answer, or was stopped at `maxTokens`. */
  readonly reason: 'end' | 'length';
}

@Injectable()
export class WriterService {
  constructor(@InjectServing('writer') private readonly writer: Writer) {}

  /**
   * The answer in pieces of text, and an event `done` at its end. To unsubscribe frees the row in
   * the model.
   */
  write({ prompt, ...options }: GenerateQuery, signal: AbortSignal): Observable<MessageEvent> {
    const messages = [{ role: 'user', content: prompt }];
    return this.writer.stream({ messages, ...options }, { signal }).pipe(
      concatMap(({ output: { text, tokens, finishReason, usage } }) => {
        const piece: Piece = { text, tokens: tokens.length };
        const events: MessageEvent[] = text === '' ? [] : [{ data: piece }];
        if (usage) {
          const { promptTokens, completionTokens } = usage;
          const reason = finishReason === 'stop' ? 'end' : 'length';
          const done: Done = { promptTokens, tokens: completionTokens, reason };
          events.push({ type: 'done', data: done });
        }
        return events;
      }),
    );
  }
}

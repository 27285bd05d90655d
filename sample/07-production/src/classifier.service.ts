import { Injectable, type OnModuleInit } from '@nestjs/common';
import { type CallOptions, InjectServing, type Serving } from 'nestjs-serving';
import type { Embedding } from 'nestjs-serving/tasks';
import { readFile } from 'node:fs/promises';
import { type Classification, type Example, nearestTopic } from './nearest-topic.js';

export interface Ticket {
  readonly subject: string;
  readonly text: string;
}

/** Finds the topic whose examples are nearest to a ticket. */
@Injectable()
export class ClassifierService implements OnModuleInit {
  private examples: readonly Example[] = [];

  constructor(@InjectServing('embedder') private readonly embedder: Serving<string, Embedding>) {}

  async onModuleInit(): Promise<void> {
    const file = await readFile(new URL('../topics.json', import.meta.url), 'utf8');
    const topics = Object.entries(JSON.parse(file) as Record<string, readonly string[]>);
    this.examples = await Promise.all(
      topics
        .flatMap(([topic, texts]) => texts.map((text) => ({ topic, text })))
        .map(async (example) => ({
          ...example,
          vector: (await this.embedder.batchedRun(example.text, { timeout: 60_000 })).vector,
        })),
    );
  }

  async classify({ subject, text }: Ticket, options: CallOptions): Promise<Classification> {
    const { vector } = await this.embedder.batchedRun(`${subject}\n${text}`, options);
    return nearestTopic(vector, this.examples);
  }

  /** All tickets, or an error: after the first failure no other ticket runs. */
  async classifyAll(
    tickets: readonly Ticket[],
    options: CallOptions,
    left: AbortSignal,
  ): Promise<Classification[]> {
    const failed = new AbortController();
    const signal = AbortSignal.any([failed.signal, left]);
    try {
      return await Promise.all(
        tickets.map((ticket) => this.classify(ticket, { ...options, signal })),
      );
    } finally {
      failed.abort();
    }
  }
}

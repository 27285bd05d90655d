import { Injectable, type OnModuleInit } from '@nestjs/common';
import { InjectServing, Serving } from 'nestjs-serving';
import type { Embedding } from 'nestjs-serving/tasks';
import { readFile } from 'node:fs/promises';

/** Questions and answers by topic. */
type Faq = Record<string, Record<string, string>>;

export interface Answer {
  readonly topic: string;
  readonly question: string;
  readonly answer: string;
  /** Cosine between the asked and the found, at most 1. */
  readonly score: number;
}

interface Entry {
  readonly answer: Omit<Answer, 'score'>;
  readonly vector: Float32Array;
}

@Injectable()
export class SearchService implements OnModuleInit {
  private entries: readonly Entry[] = [];

  constructor(@InjectServing('embedder') private readonly embedder: Serving<string, Embedding>) {}

  /** Embeds all entries at once, so the start runs in full batches too. */
  async onModuleInit() {
    const faq = JSON.parse(await readFile(new URL('../faq.json', import.meta.url), 'utf8')) as Faq;
    const entries = Object.entries(faq).flatMap(([topic, answers]) =>
      Object.entries(answers).map(async ([question, answer]) => {
        const { vector } = await this.embedder.batchedRun(`${question} ${answer}`);
        return { answer: { topic, question, answer }, vector };
      }),
    );
    this.entries = await Promise.all(entries);
  }

  /** The questions that have an answer here, as one would type them. */
  get questions(): string[] {
    return this.entries.map(({ answer }) => answer.question);
  }

  /** The nearest answers, best first. */
  async search(text: string, limit = 5): Promise<Answer[]> {
    const { vector: asked } = await this.embedder.batchedRun(text);
    return this.entries
      .map(({ answer, vector }) => ({ answer, score: cosine(asked, vector) }))
      .toSorted((one, other) => other.score - one.score)
      .slice(0, limit)
      .map(({ answer, score }) => ({ ...answer, score }));
  }
}

/** Cosine of unit vectors. The serving returns unit vectors. */
function cosine(one: Float32Array, other: Float32Array): number {
  let sum = 0;
  for (let index = 0; index < one.length; index++) {
    sum += one[index]! * other[index]!;
  }
  return sum;
}

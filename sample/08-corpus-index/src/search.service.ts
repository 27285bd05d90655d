import { Injectable } from '@nestjs/common';
import { InjectServing, Serving } from 'nestjs-serving';
import type { Embedding } from 'nestjs-serving/tasks';
import { type Chunk, Corpus } from './corpus.js';
import { VectorStore } from './vector-store.js';

export interface Found {
  /** The number of the line. */
  readonly line: number;
  readonly text: string;
  /** Cosine between the question and the line, at most 1. */
  readonly score: number;
}

/** Searches the lines that are indexed so far. */
@Injectable()
export class SearchService {
  private readonly loaded = new Map<Chunk, readonly Float32Array[]>();
  private readonly chunks: readonly Chunk[];

  constructor(
    @InjectServing('embedder') private readonly embedder: Serving<string, Embedding>,
    private readonly store: VectorStore,
    corpus: Corpus,
  ) {
    this.chunks = corpus.chunks;
  }

  /** The nearest lines, best first. */
  async search(question: string, limit = 5): Promise<Found[]> {
    const [{ vector: asked }] = await Promise.all([
      this.embedder.batchedRun(question),
      this.loadNewChunks(),
    ]);
    return [...this.loaded]
      .flatMap(([{ first, lines }, vectors]) =>
        vectors.map((vector, index) => ({
          line: first + index,
          text: lines[index]!,
          score: cosine(asked, vector),
        })),
      )
      .toSorted((one, other) => other.score - one.score)
      .slice(0, limit);
  }

  private async loadNewChunks() {
    const missing = this.chunks.filter((chunk) => !this.loaded.has(chunk));
    await Promise.all(
      missing.map(async (chunk) => {
        const vectors = await this.store.load(chunk);
        if (vectors) {
          this.loaded.set(chunk, vectors);
        }
      }),
    );
  }
}

/** Cosine of unit vectors. The serving returns unit vectors. */
function cosine(one: Float32Array, other: Float32Array): number {
  return one.reduce((sum, value, index) => sum + value * other[index]!, 0);
}

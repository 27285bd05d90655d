import type { InferenceSession } from 'onnxruntime-node';
import {
  DONE,
  last,
  type SequenceModel,
  type SequenceStart,
  type SequenceStep,
} from 'nestjs-serving';
import { Decoding } from './decoding.js';
import { createSampler, type Sampling } from './sampling.js';

/** A prompt as it is sent to the model's thread. */
export interface Prompt extends Sampling {
  readonly tokens: readonly number[];
  /** The most tokens of the answer. */
  readonly maxTokens: number;
  /** The token that ends the answer. It is not part of it. */
  readonly endToken: number;
}

/** An answer that is being written. */
interface Answer {
  readonly prompt: Prompt;
  readonly sample: (logits: Float32Array) => number;
  /** The rows that it is read with, and its index there. */
  place: { readonly decoding: Decoding; readonly index: number };
  /** The token that the model reads next. */
  next: number;
  tokens: number;
}

/** Answers prompts together, a token for each at a time. */
export class Writer implements SequenceModel<Prompt, number, Answer> {
  private decoding: Decoding | undefined;

  constructor(private readonly session: InferenceSession) {}

  /** Reads the prompts, all but the last token, which is that of their first step. */
  async start(prompts: readonly Prompt[], { emitted }: SequenceStart<number>): Promise<Answer[]> {
    const texts = prompts.map(({ tokens }, i) => [...tokens, ...emitted[i]!]);
    const decoding = await Decoding.begin(
      this.session,
      texts.map((text) => text.slice(0, -1)),
    );
    return prompts.map((prompt, index) => ({
      prompt,
      sample: createSampler(prompt, emitted[index]!.length),
      place: { decoding, index },
      next: texts[index]!.at(-1)!,
      tokens: emitted[index]!.length,
    }));
  }

  async step(rows: readonly Answer[], { changed }: SequenceStep) {
    if (changed) {
      this.layOut(rows);
    }
    const logits = await this.decoding!.read(rows.map(({ next }) => [next]));
    return rows.map((row, i) => {
      const { endToken, maxTokens } = row.prompt;
      row.next = row.sample(logits[i]!);
      row.tokens += 1;
      return row.next === endToken ? DONE : row.tokens === maxTokens ? last(row.next) : row.next;
    });
  }

  /** The tokens in the cache of an answer. */
  cost({ tokens }: Prompt, written: number): number {
    return tokens.length + written;
  }

  /** One cache of the rows that are present. */
  private layOut(rows: readonly Answer[]): void {
    const cached = rows.map(({ place }) => place.decoding.row(place.index));
    const decoding = Decoding.of(this.session, cached);
    rows.forEach((row, index) => (row.place = { decoding, index }));
    this.decoding = decoding;
  }
}

import { ConflictException } from '@nestjs/common';
import type { ServingOf } from 'nestjs-serving';
import { stateSize, type vad } from './vad.serving.js';
import { noSamples, windowsOf } from './windows.js';

/** The state of a stream: a value that is replaced when a whole piece has been processed. */
interface Memory {
  readonly rest: Float32Array;
  readonly state: Float32Array;
  /** Number of processed samples. */
  readonly position: number;
}

/**
 * One audio stream. Its chunks run strictly in order, since each needs the state after the one
 * before it.
 */
export class AudioStream {
  private memory: Memory = { rest: noSamples, state: new Float32Array(stateSize), position: 0 };
  private last: Promise<unknown> = Promise.resolve();

  constructor(private readonly detector: ServingOf<typeof vad>) {}

  /**
   * Processes the next samples after all earlier ones, and resolves with the probability of speech
   * for each chunk that they complete. If it fails, the stream is unchanged, and the caller may
   * repeat the piece.
   *
   * @param position place of the piece in the stream, in samples, to be checked
   */
  hear(piece: Float32Array, position?: number): Promise<number[]> {
    const turn = this.last.then(() => this.hearNow(piece, position));
    this.last = turn.catch(() => undefined);
    return turn;
  }

  private async hearNow(piece: Float32Array, position = this.memory.position): Promise<number[]> {
    if (position !== this.memory.position) {
      throw new ConflictException(
        `The stream is at sample ${this.memory.position}, and this piece begins at ${position}`,
      );
    }
    const { windows, rest } = windowsOf(this.memory.rest, piece);
    const probabilities: number[] = [];
    let { state } = this.memory;
    for (const window of windows) {
      const judgement = await this.detector.batchedRun({ window, state });
      probabilities.push(judgement.probability);
      state = judgement.state;
    }
    this.memory = { rest, state, position: position + piece.length };
    return probabilities;
  }
}

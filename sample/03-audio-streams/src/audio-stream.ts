import { ConflictException } from '@nestjs/common';
import type { ServingOf } from 'nestjs-serving';
import { stateSize, type vad } from './vad.serving.js';
import { noSamples, windowsOf } from './windows.js';

/** Where a stream stands: a value, replaced only when all of a piece has been heard. */
interface Memory {
  readonly rest: Float32Array;
  readonly state: Float32Array;
  /** How many samples have been heard. */
  readonly position: number;
}

/**
 * One stream of sound. Its chunks are heard strictly in order, since each needs the state that the
 * one before it left.
 */
export class AudioStream {
  private memory: Memory = { rest: noSamples, state: new Float32Array(stateSize), position: 0 };
  private last: Promise<unknown> = Promise.resolve();

  constructor(private readonly detector: ServingOf<typeof vad>) {}

  /**
   * Hears the next samples, after all that came before them; resolves with the probability of
   * speech for each chunk that they complete. If that fails, the stream is as it was, and the piece
   * may be sent again.
   *
   * @param position where in the stream the piece begins, in samples, if the caller wants that
   * checked
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

import { ConflictException } from '@nestjs/common';
import type { ServingSession } from 'nestjs-serving';
import { noSamples, windowsOf } from './windows.js';

/**
 * One audio stream. Its chunks run strictly in order, since each needs the state after the one
 * before it, which the session keeps.
 */
export class AudioStream {
  /** The context of the next chunk, and the first samples of that chunk. */
  private rest: Float32Array = noSamples;
  /** The number of processed samples. */
  private position = 0;
  /** The probabilities for the chunks of a piece that has failed at a later chunk. */
  private heard: number[] = [];
  private last: Promise<unknown> = Promise.resolve();

  constructor(private readonly detector: ServingSession<Float32Array, number>) {}

  /**
   * Processes the next samples after all earlier ones, and resolves with the probability of speech
   * for each chunk that they complete. If it fails, the caller may repeat the piece, which goes on
   * where it failed.
   *
   * @param position place of the piece in the stream, in samples, to be checked
   */
  hear(piece: Float32Array, position?: number): Promise<number[]> {
    const turn = this.last.then(() => this.hearNow(piece, position));
    this.last = turn.catch(() => undefined);
    return turn;
  }

  /** Ends the session, whose state is freed. */
  close(): Promise<void> {
    return this.detector.close();
  }

  private async hearNow(piece: Float32Array, position = this.position): Promise<number[]> {
    if (position !== this.position) {
      throw new ConflictException(
        `The stream is at sample ${this.position}, and this piece begins at ${position}`,
      );
    }
    const { windows, rest } = windowsOf(this.rest, piece);
    for (const window of windows.slice(this.heard.length)) {
      this.heard.push(await this.detector.run(window));
    }
    const probabilities = this.heard;
    this.heard = [];
    this.rest = rest;
    this.position += piece.length;
    return probabilities;
  }
}

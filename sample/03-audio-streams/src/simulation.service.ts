import { Injectable, Logger, type OnModuleDestroy, type OnModuleInit } from '@nestjs/common';
import { setMaxListeners } from 'node:events';
import { performance } from 'node:perf_hooks';
import { setTimeout } from 'node:timers/promises';
import type { SimulationDto } from './simulation.dto.js';
import { readClip } from './speech-clip.js';
import { StreamsService } from './streams.service.js';
import { sampleRate } from './vad.serving.js';
import { chunkSamples } from './windows.js';

/** Samples that a caller sends at a time: 20 ms, as telephones do. */
const pieceSamples = 320;

/** How long each caller stays, in samples: a minute. */
const callSamples = 60 * sampleRate;

/** Milliseconds that a chunk lasts. */
const chunkTime = (chunkSamples / sampleRate) * 1000;

interface SimulatedCall {
  /** Where in the clip the caller begins, in samples. */
  readonly offset: number;
  /** Milliseconds before its first piece. */
  readonly delay: number;
  readonly speed: number;
  readonly signal: AbortSignal;
}

/** Plays many callers from inside, since a browser opens only six connections to one host. */
@Injectable()
export class SimulationService implements OnModuleInit, OnModuleDestroy {
  private readonly logger = new Logger(SimulationService.name);
  private clip: Float32Array = new Float32Array();
  private running = new AbortController();

  constructor(private readonly streams: StreamsService) {}

  async onModuleInit() {
    this.clip = await readClip();
  }

  onModuleDestroy() {
    this.stop();
  }

  /** The callers of an earlier simulation hang up first. */
  start({ streams, speed }: SimulationDto): void {
    this.stop();
    this.running = new AbortController();
    const { signal } = this.running;
    setMaxListeners(streams, signal);
    for (let index = 0; index < streams; index++) {
      // Steps of the golden ratio spread the callers over the clip, and over the time of a chunk,
      // however many there are.
      const share = (index * 0.618) % 1;
      const call = {
        offset: Math.floor(share * this.clip.length),
        delay: share * chunkTime,
        speed,
        signal,
      };
      this.play(this.streams.open(`caller ${index + 1}`), call).catch((error: unknown) => {
        if (!signal.aborted) {
          this.logger.error(error);
        }
      });
    }
  }

  stop(): void {
    this.running.abort();
  }

  private async play(id: string, { offset, delay, speed, signal }: SimulatedCall): Promise<void> {
    const start = performance.now() + delay / speed;
    try {
      for (let sent = 0; sent < callSamples; sent += pieceSamples) {
        const due = start + ((sent / sampleRate) * 1000) / speed;
        await setTimeout(Math.max(0, due - performance.now()), undefined, { signal });
        await this.streams.hear(id, this.piece(offset + sent));
      }
    } finally {
      this.streams.end(id);
    }
  }

  /** The clip over and over. */
  private piece(from: number): Float32Array {
    return Float32Array.from(
      { length: pieceSamples },
      (_, index) => this.clip[(from + index) % this.clip.length]!,
    );
  }
}

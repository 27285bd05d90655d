import { Injectable, NotFoundException, type OnModuleDestroy } from '@nestjs/common';
import { InjectServing, type ServingOf } from 'nestjs-serving';
import { randomUUID } from 'node:crypto';
import { auditTime, buffer, defer, map, type Observable, startWith, Subject } from 'rxjs';
import { AudioStream } from './audio-stream.js';
import { timelineOf } from './timeline.js';
import { vad } from './vad.serving.js';

/** How a stream looks from outside. */
export interface StreamView {
  readonly id: string;
  readonly name: string;
  /** Number of processed chunks. */
  readonly chunks: number;
  /** The last of them, `#` for speech and `_` for silence. */
  readonly timeline: string;
  readonly ended: boolean;
}

interface OpenStream {
  readonly stream: AudioStream;
  /** Ends the stream. */
  readonly idle: NodeJS.Timeout;
  readonly view: StreamView;
}

/** Milliseconds after which a stream that sends nothing is forgotten. */
const longestPause = 60_000;

/** Chunks of a timeline that are kept: the last six seconds. */
const kept = 192;

/** The streams that are open. */
@Injectable()
export class StreamsService implements OnModuleDestroy {
  private readonly streams = new Map<string, OpenStream>();
  private readonly changed$ = new Subject<StreamView>();

  constructor(@InjectServing(vad) private readonly detector: ServingOf<typeof vad>) {}

  /**
   * Ends the streams to browsers too: the server would wait for them, and the servings end only
   * after the server.
   */
  onModuleDestroy() {
    for (const id of this.streams.keys()) {
      this.end(id);
    }
    this.changed$.complete();
  }

  /** All streams that are open, and then those that changed, at most ten times a second. */
  get views$(): Observable<readonly StreamView[]> {
    return defer(() =>
      this.changed$.pipe(
        buffer(this.changed$.pipe(auditTime(100))),
        map((views) => [...new Map(views.map((view) => [view.id, view])).values()]),
        startWith(Array.from(this.streams.values(), ({ view }) => view)),
      ),
    );
  }

  open(name?: string): string {
    const id = randomUUID();
    const idle = setTimeout(() => this.end(id), longestPause).unref();
    const view = { id, name: name ?? id.slice(0, 8), chunks: 0, timeline: '', ended: false };
    this.update({ stream: new AudioStream(this.detector.open()), idle, view });
    return id;
  }

  /**
   * The probability of speech for each chunk that the piece completes; see
   * {@link AudioStream.hear}.
   */
  async hear(id: string, piece: Float32Array, position?: number): Promise<number[]> {
    const { stream, idle } = this.find(id);
    idle.refresh();
    const probabilities = await stream.hear(piece, position);
    this.extend(id, timelineOf(probabilities));
    return probabilities;
  }

  /** Forgets the stream, if it is still open. */
  end(id: string): void {
    const open = this.streams.get(id);
    if (open) {
      clearTimeout(open.idle);
      this.streams.delete(id);
      void open.stream.close();
      this.changed$.next({ ...open.view, ended: true });
    }
  }

  /** @throws NotFoundException where no such stream is open */
  find(id: string): OpenStream {
    const found = this.streams.get(id);
    if (!found) {
      throw new NotFoundException(`There is no stream ${id}: it was never opened, or has ended`);
    }
    return found;
  }

  private extend(id: string, marks: string): void {
    const open = this.streams.get(id);
    // The stream may have ended meanwhile, and a piece may complete no chunk.
    if (open && marks) {
      const { view } = open;
      const timeline = (view.timeline + marks).slice(-kept);
      this.update({ ...open, view: { ...view, chunks: view.chunks + marks.length, timeline } });
    }
  }

  private update(open: OpenStream): void {
    this.streams.set(open.view.id, open);
    this.changed$.next(open.view);
  }
}

import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import type { Subscription } from 'rxjs';
import {
  StreamsService,
  type StreamView,
} from '../../../sample/03-audio-streams/src/streams.service.js';
import { chunkSamples } from '../../../sample/03-audio-streams/src/windows.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { later, useVirtualTime } from '../../fixtures/async/virtual-time.js';

describe('StreamsService', () => {
  let streams: StreamsService;
  let seen: (readonly StreamView[])[];
  let subscription: Subscription;

  afterEach(() => {
    subscription.unsubscribe();
    streams.onModuleDestroy();
  });

  useVirtualTime();
  const start = useServings();

  beforeEach(async () => {
    const detector = await start<number>({
      name: 'vad',
      model: {
        useFactory: () => (rows: readonly unknown[]) =>
          (rows as Float32Array[]).map((window) => window.at(-1)!),
        sessions: {},
      },
    });
    streams = new StreamsService(detector);
    seen = [];
    subscription = streams.views$.subscribe((views) => seen.push(views));
  });

  it('A stream that was silent for a minute is removed', async () => {
    const silent = streams.open();
    const talkative = streams.open();
    await later(59_000);
    await streams.hear(talkative, new Float32Array(1));
    await later(59_000);

    await expect(streams.hear(silent, new Float32Array(1))).rejects.toThrow(
      `There is no stream ${silent}`,
    );
    await expect(streams.hear(talkative, new Float32Array(1))).resolves.toEqual([]);
    await later(61_000);
    expect(() => streams.find(talkative)).toThrow(`There is no stream ${talkative}`);
  });

  it('Changes are published at most ten times a second, each stream once', async () => {
    const id = streams.open('me');
    const other = streams.open('you');
    for (const level of [0, 0.4, 0.5, 1, 0]) {
      await streams.hear(id, new Float32Array(chunkSamples).fill(level));
    }
    await later(100);
    streams.end(other);
    await later(1000);

    const view = { id, name: 'me', chunks: 5, timeline: '__##_', ended: false };
    const silent = { id: other, name: 'you', chunks: 0, timeline: '', ended: false };
    expect(seen).toEqual([[], [view, silent].toSorted(byName), [{ ...silent, ended: true }]]);
  });

  it('The last six seconds of a timeline are kept for later viewers', async () => {
    const id = streams.open('me');
    await streams.hear(id, new Float32Array(chunkSamples * 2).fill(1));
    await streams.hear(id, new Float32Array(chunkSamples * 191));

    streams.views$.subscribe((views) => seen.push(views)).unsubscribe();
    expect(seen.at(-1)).toEqual([
      { id, name: 'me', chunks: 193, timeline: `#${'_'.repeat(191)}`, ended: false },
    ]);
  });

  it('Publication and all streams end with the application', () => {
    const id = streams.open();
    streams.onModuleDestroy();

    expect(subscription.closed).toBe(true);
    expect(() => streams.find(id)).toThrow(`There is no stream ${id}`);
  });
});

function byName(one: StreamView, other: StreamView): number {
  return one.name.localeCompare(other.name);
}

import { setImmediate } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, it, jest } from '@jest/globals';
import * as fc from 'fast-check';
import type { CallOptions, Serving } from '../../../lib/index.js';
import { writeInTurns } from '../../../lib/encoding/turns.js';
import { base64Of, createEmbeddings } from '../../../lib/extensions/openai/calls.js';
import type { OfferedModels } from '../../../lib/extensions/openai/models.js';

interface Call {
  readonly input: { readonly text: string };
  readonly options: CallOptions;
  readonly resolve: (reply: unknown) => void;
  readonly reject: (error: unknown) => void;
}

/** Models of one serving, whose calls the test answers. */
class Calls {
  readonly calls: Call[] = [];
  /** Milliseconds for which the start of a call holds the event loop. */
  duration = 0;
  readonly models = {
    find: () => ({ id: 'm', task: 'text-embedding', serving: this.serving, inputs: 100 }),
  } as unknown as OfferedModels;

  private readonly serving = {
    local: { versionFor: () => 'july' },
    batchedRun: (input: Call['input'], options: CallOptions) =>
      new Promise((resolve, reject) => {
        jest.advanceTimersByTime(this.duration);
        options.signal?.addEventListener('abort', () => reject(options.signal!.reason));
        this.calls.push({ input, options, resolve, reject });
      }),
  } as unknown as Serving;

  embed(input: readonly string[], options: CallOptions = {}): Promise<object> {
    return createEmbeddings(this.models, { model: 'm', input }, options);
  }
}

describe('A request for the vectors of several texts', () => {
  beforeEach(() => {
    jest.useFakeTimers({ doNotFake: ['nextTick', 'setImmediate', 'queueMicrotask'] });
  });

  afterEach(() => {
    jest.useRealTimers();
  });

  it('[23.5] has them in order, whichever is ready first, by one version of the model', async () => {
    const embedder = new Calls();
    const reply = embedder.embed(['a', 'b', 'c']);
    embedder.calls
      .toReversed()
      .forEach(({ input: { text }, resolve }) =>
        resolve({ vector: Float32Array.of(text.charCodeAt(0)), tokens: 2 }),
      );

    const written = Buffer.concat(await writeInTurns(await reply)).toString();
    expect(JSON.parse(written)).toMatchObject({
      data: [{ embedding: [97] }, { embedding: [98] }, { embedding: [99] }],
      usage: { prompt_tokens: 6, total_tokens: 6 },
    });
    expect(embedder.calls.map(({ options }) => options.version)).toEqual(['july', 'july', 'july']);
  });

  it('[23.5] fails with the first text that fails, and cancels the others', async () => {
    const embedder = new Calls();
    const reply = embedder.embed(['a', 'b', 'c']);
    const error = new Error('b fails');
    embedder.calls[1]!.reject(error);

    await expect(reply).rejects.toBe(error);
    expect(embedder.calls.map(({ options }) => options.signal!.reason)).toEqual([
      error,
      error,
      error,
    ]);
  });

  it('[23.5] starts no further text when one has failed meanwhile', async () => {
    const embedder = new Calls();
    embedder.duration = 11;
    const reply = embedder.embed(['a', 'b', 'c', 'd', 'e']);
    const error = new Error('a fails');
    embedder.calls[0]!.reject(error);

    await expect(reply).rejects.toBe(error);
    expect(embedder.calls).toHaveLength(1);
  });

  it('[23.5] ends with its client', async () => {
    const embedder = new Calls();
    const client = new AbortController();
    const reply = embedder.embed(['a', 'b'], { signal: client.signal });
    client.abort(new Error('has left'));

    await expect(reply).rejects.toThrow('has left');
    expect(embedder.calls.map(({ options }) => options.signal!.aborted)).toEqual([true, true]);
  });

  it('[23.5] lets other work of the event loop pass between texts that take long', async () => {
    const embedder = new Calls();
    embedder.duration = 11;
    void embedder.embed(['a', 'b', 'c', 'd']).catch(() => {});

    expect(embedder.calls).toHaveLength(1);
    while (embedder.calls.length < 4) {
      await setImmediate();
    }
    embedder.calls[0]!.reject(new Error('the end'));
  });
});

it('[23.2] Base64 has the little-endian bytes of each number', () => {
  const numbers = fc.float32Array({ minLength: 1 });
  fc.assert(
    fc.property(numbers, fc.nat(3), (vector, offset) => {
      const larger = new Float32Array(vector.length + offset);
      larger.set(vector, offset);
      const bytes = Buffer.from(base64Of(larger.subarray(offset)), 'base64');
      const read = Array.from(vector, (_, i) => bytes.readFloatLE(4 * i));

      expect(bytes).toHaveLength(4 * vector.length);
      expect(read).toEqual([...vector]);
    }),
  );
});

import { isDeepStrictEqual } from 'node:util';
import * as fc from 'fast-check';
import { Tensor } from 'nestjs-serving';
import type * as frame from '../../dist/esm/extensions/distribution/wire/frame.js';
import type * as limits from '../../dist/esm/extensions/distribution/wire/limits.js';
import type * as values from '../../dist/esm/extensions/distribution/wire/values.js';
import { mutated } from '../fixtures/values/mutated-bytes.js';
import { wireSamples } from '../fixtures/cluster/wire-samples.js';
import type { Attack, Entry, Outcome } from './entry.js';

type Wire = Pick<typeof frame, 'encodeFrame' | 'decodeFrame'> &
  Pick<typeof limits, 'defaultWireLimits'> &
  Pick<typeof values, 'encodeValue'>;

/** What one node sends to another, with bits turned, parts missing and lengths of all sizes. */
export async function frames(): Promise<Entry> {
  const wire = await loadWire();
  const encode = (value: unknown): Uint8Array =>
    wire.encodeFrame({
      kind: 1,
      header: { id: 7, name: 'model' },
      value: wire.encodeValue(value, wire.defaultWireLimits),
    });
  const sources = wireSamples.map(encode);

  const hostile = (seed: number): Attack => ({
    async send() {
      const [bytes] = mutated(sources, 1, seed);
      return read(wire, bytes!);
    },
    toString: () => `of the frames of the samples, mutated with the seed ${seed}`,
  });
  const valid = (n: number): Attack => ({
    async send() {
      const value = {
        n,
        tensor: new Tensor('int32', [n, -n], [1, 2]),
        list: [NaN, undefined, BigInt(n), `${n}`],
      };
      const came = wire.decodeFrame(encode(value), wire.defaultWireLimits).value();
      return isDeepStrictEqual(came, value)
        ? { word: 'right' }
        : { word: 'wrong', fault: 'came out as another value' };
    },
    toString: () => `a frame with the number ${n}`,
  });
  return { name: 'frames', hostile: fc.integer().map(hostile), valid: fc.nat().map(valid) };
}

function read({ decodeFrame, defaultWireLimits }: Wire, bytes: Uint8Array): Outcome {
  try {
    decodeFrame(bytes, defaultWireLimits).value();
    return { word: 'read' };
  } catch (error) {
    const { name, message, stack } = error as Error;
    if (name !== 'FrameError') {
      return { word: name, fault: `failed with ${stack}` };
    }
    return message.length > 1000
      ? { word: name, fault: `has a message of ${message.length} characters` }
      : { word: name };
  }
}

/** How nodes talk, which the package keeps to itself: taken from where the build puts it. */
async function loadWire(): Promise<Wire> {
  const files = ['frame', 'limits', 'values'].map(
    (file) => `../../../../dist/esm/extensions/distribution/wire/${file}.js`,
  );
  const [first, second, third] = await Promise.all(
    files.map((file) => import(new URL(file, import.meta.url).href)),
  );
  return { ...first, ...second, ...third };
}

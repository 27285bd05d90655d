import { setImmediate as turn } from 'node:timers/promises';
import { afterEach, describe, expect, it } from '@jest/globals';
import { Batch, NodeLostError } from 'nestjs-serving';
import type { MemoryTransport } from '../../../lib/extensions/distribution/memory-network.js';
import {
  decodeFrame,
  encodeFrame,
  type Frame,
} from '../../../lib/extensions/distribution/wire/frame.js';
import { defaultWireLimits } from '../../../lib/extensions/distribution/wire/limits.js';
import { Kind } from '../../../lib/extensions/distribution/wire/prelude.js';
import { encodeValue } from '../../../lib/extensions/distribution/wire/values.js';
import { until } from '../../fixtures/async/awaited.js';
import { failureOf } from '../../fixtures/async/failure-of.js';
import { contextOf, RecordingReceiver } from '../../fixtures/async/recording-receiver.js';
import { falseBeat, IMPOSTOR } from '../../fixtures/cluster/impostor.js';
import { iterated, outputsOf } from '../../fixtures/async/streams.js';
import { useCluster } from '../../fixtures/cluster/use-cluster.js';

describe('The flow control of a stream between two nodes', () => {
  const cluster = useCluster();
  let hostile: MemoryTransport | undefined;

  afterEach(() => hostile?.stop());

  /** A node that sends what the test says; gives the frames that come for it. */
  async function hostileNode(receive: (frame: Frame) => void = () => {}): Promise<Frame[]> {
    const frames: Frame[] = [];
    hostile = cluster.network({}).transport();
    const receiver = Object.assign(new RecordingReceiver(), {
      receive(packet: Uint8Array) {
        const frame = decodeFrame(packet, defaultWireLimits);
        frames.push(frame);
        receive(frame);
      },
    });
    await hostile.start(contextOf(IMPOSTOR, receiver, { namespace: 'default' }));
    return frames;
  }

  function send(to: string, kind: Kind, call: number, header: object, value?: unknown): void {
    const encoded = value === undefined ? undefined : encodeValue(value, defaultWireLimits);
    hostile!.send(
      to,
      encodeFrame({ kind, call, header: { from: IMPOSTOR, to, ...header }, value: encoded }),
    );
  }

  it.each([
    ['64 messages', 1000, 65, 100],
    ['1 MiB', 200_000, 7, 50],
  ])(
    '[L6] A caller that sends more of a lazy input than %s gets an error, and the call ends',
    async (_, bytes, first, more) => {
      const frames = await hostileNode();
      const never = {
        name: 'never',
        model: { useFactory: () => () => new Promise<never>(() => {}) },
        shutdown: { timeout: 10 },
        batchSize: 1,
      };
      const owner = await cluster.node({ servings: [never] });
      send(owner.address, Kind.request, 1, {
        serving: 'never',
        method: 'batchedRun',
        lazyInput: true,
      });
      await until(() => frames.some(({ kind }) => kind === Kind.inputCredit));
      const element = new Uint8Array(bytes);
      for (let index = 0; index < first; index++) {
        send(owner.address, Kind.input, 1, { index }, element);
      }
      await turn();
      for (let index = first; index < first + more; index++) {
        send(owner.address, Kind.input, 1, { index }, element);
      }
      await until(() => frames.some(({ kind }) => kind === Kind.error));
      await turn();

      expect(frames.filter(({ kind }) => kind === Kind.error)).toMatchObject([
        {
          call: 1,
          header: {
            error: {
              code: 'SERVING_INVALID_INPUT',
              message: expect.stringContaining('exceeds the window'),
            },
          },
        },
      ]);
    },
  );

  it('[L6] An owner that sends more events than granted loses the call', async () => {
    const frames = await hostileNode(({ kind, call, header }) => {
      if (kind === Kind.request) {
        const { from: to } = header as { from: string };
        for (let index = 0; index < 200; index++) {
          send(to, Kind.chunk, call, { index }, { batch: 0, output: index });
        }
      }
    });
    const web = await cluster.node({ attempts: 1 });
    hostile!.broadcast(falseBeat('m'));
    await web.untilNodes('m');

    const failure = await failureOf(iterated(web.servings.stream('m', 1)));
    await until(() => frames.some(({ kind }) => kind === Kind.cancel));

    expect(failure).toBeInstanceOf(NodeLostError);
    expect(String(failure)).toContain('exceeds the window of 64 messages');
  });

  it.each([
    [{ messages: 1, bytes: 1 }, {}],
    [{}, { messages: 1, bytes: 1 }],
  ])('[L6] Nodes with the windows %j and %j stream to each other', async (ofOwner, ofCaller) => {
    const echo = { name: 'echo', model: { useFactory: () => (rows: readonly unknown[]) => rows } };
    await cluster.node({ servings: [echo], window: ofOwner });
    const web = await cluster.node({ window: ofCaller });
    await web.untilNodes('echo');
    const numbers = Array.from({ length: 150 }, (_, i) => i);

    const outputs = outputsOf(
      await iterated(
        web.servings.stream(
          'echo',
          (async function* () {
            for (const number of numbers) {
              yield Batch.ofValues([number]);
            }
          })(),
        ),
      ),
    );

    expect(outputs.flat()).toEqual(numbers);
  });
});

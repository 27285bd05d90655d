import { afterEach, describe, expect, it } from '@jest/globals';
import { VirtualTime } from 'nestjs-serving/testing';
import type { MemoryTransport } from '../../../lib/extensions/distribution/memory-network.js';
import { decodeFrame, encodeFrame } from '../../../lib/extensions/distribution/wire/frame.js';
import { defaultWireLimits } from '../../../lib/extensions/distribution/wire/limits.js';
import { Kind } from '../../../lib/extensions/distribution/wire/prelude.js';
import { contextOf, RecordingReceiver } from '../../fixtures/async/recording-receiver.js';
import { falseBeat, IMPOSTOR } from '../../fixtures/cluster/impostor.js';
import { useCluster } from '../../fixtures/cluster/use-cluster.js';

const hello = (from: string): Uint8Array => encodeFrame({ kind: Kind.hello, header: { from } });

describe('A hello to the nodes of a cluster without a secret', () => {
  const cluster = useCluster();
  let time: VirtualTime | undefined;
  let stranger: MemoryTransport | undefined;

  afterEach(async () => {
    await stranger?.stop();
    time?.restore();
  });

  /** A stranger at the broker. Returns the frames that it receives. */
  async function connect(): Promise<{ readonly kind: number; readonly to: unknown }[]> {
    const frames: { kind: number; to: unknown }[] = [];
    stranger = cluster.network({ connections: false }).transport();
    const receiver = Object.assign(new RecordingReceiver(), {
      receive(packet: Uint8Array) {
        const { kind, header } = decodeFrame(packet, defaultWireLimits);
        frames.push({ kind, to: header['to'] });
      },
    });
    await stranger.start(contextOf(IMPOSTOR, receiver, { namespace: 'default' }));
    return frames;
  }

  it('[S2] A hello of an unknown sender is not answered', async () => {
    time = await VirtualTime.install();
    const frames = await connect();
    await cluster.node({
      servings: [{ name: 'm', model: { useFactory: () => (rows: readonly unknown[]) => rows } }],
    });
    await time.advance(300);
    frames.length = 0;

    for (let i = 0; i < 100; i++) {
      stranger!.broadcast(hello(IMPOSTOR));
      stranger!.broadcast(hello(`forged-${i}`));
    }
    await time.advance(500);

    expect(frames).toEqual([]);
  });

  it('[S2] Hellos of a known node are answered at most ten times per heartbeat', async () => {
    time = await VirtualTime.install();
    const frames = await connect();
    await cluster.node({
      servings: [{ name: 'm', model: { useFactory: () => (rows: readonly unknown[]) => rows } }],
    });
    stranger!.broadcast(falseBeat('x'));
    await time.advance(300);
    frames.length = 0;

    for (let round = 0; round < 100; round++) {
      for (let i = 0; i < 20; i++) {
        stranger!.broadcast(hello(IMPOSTOR));
      }
      await time.advance(10);
    }

    const answers = frames.filter(({ to }) => to === IMPOSTOR);
    expect(answers.length).toBeGreaterThan(8);
    expect(answers.length).toBeLessThanOrEqual(10);
  });

  it('[S2] Hellos of ever new incarnations are answered at most as often as there may be nodes', async () => {
    time = await VirtualTime.install();
    const frames = await connect();
    await cluster.node({
      limits: { nodes: 5 },
      servings: [{ name: 'm', model: { useFactory: () => (rows: readonly unknown[]) => rows } }],
    });

    for (let epoch = 0; epoch < 100; epoch++) {
      stranger!.broadcast(falseBeat('x', { epoch }));
      stranger!.broadcast(hello(IMPOSTOR));
    }
    await time.advance(300);

    expect(frames.filter(({ to }) => to === IMPOSTOR)).toHaveLength(5);
  });

  it('[S2] The hello of a node that joins is answered at once, with any heartbeat interval', async () => {
    const heartbeat = 60_000;
    cluster.network({ connections: false });
    await cluster.node({
      heartbeat,
      servings: [{ name: 'm', model: { useFactory: () => (rows: readonly unknown[]) => rows } }],
    });
    const began = performance.now();
    const web = await cluster.node({ heartbeat });
    await web.untilNodes('m');

    expect(performance.now() - began).toBeLessThan(heartbeat);
  });
});

import { afterEach, describe, expect, it } from '@jest/globals';
import { setImmediate as turn } from 'node:timers/promises';
import { NodeLostError, type ServingService } from 'nestjs-serving';
import type { MemoryTransport } from '../../../lib/extensions/distribution/memory-network.js';
import { decodeFrame, encodeFrame } from '../../../lib/extensions/distribution/wire/frame.js';
import { defaultWireLimits } from '../../../lib/extensions/distribution/wire/limits.js';
import { Kind } from '../../../lib/extensions/distribution/wire/prelude.js';
import { encodeValue } from '../../../lib/extensions/distribution/wire/values.js';
import { failureOf } from '../../fixtures/async/failure-of.js';
import { contextOf, RecordingReceiver } from '../../fixtures/async/recording-receiver.js';
import { falseBeat, Impostor, IMPOSTOR } from '../../fixtures/cluster/impostor.js';
import { iterated } from '../../fixtures/async/streams.js';
import { useCluster } from '../../fixtures/cluster/use-cluster.js';
import {
  type ClusterProcess,
  useClusterProcesses,
} from '../../fixtures/cluster/use-cluster-processes.js';
import { tcp } from '../../fixtures/cluster/wirings.js';

const secret = 'known to nodes alone';
const another = 'known to others alone';

describe('An impostor at the port of a node', () => {
  const { node } = useClusterProcesses(tcp());
  let impostor: Impostor | undefined;

  afterEach(() => impostor?.leave());

  /**
   * A node with the serving and one that calls it over HTTP. The impostor connects to the latter.
   */
  async function pair(
    distribution: object,
  ): Promise<[owner: ClusterProcess, caller: ClusterProcess]> {
    const owner = await node({ servings: [{ name: 'm' }], distribution });
    const caller = await node({ kind: 'http', distribution: { ...distribution, role: 'node' } });
    expect(await caller.get('any/m/1')).toMatchObject({ pid: owner.pid });
    impostor = await Impostor.connect(caller.places.port!);
    return [owner, caller];
  }

  it('[11] Without the secret an impostor gets no connection and no call', async () => {
    const [owner, caller] = await pair({ secret });

    expect(await impostor!.ask('sv.default.who', { nonce: 'mine' })).toMatchObject({
      response: { nonce: expect.any(String) },
    });
    expect(await impostor!.ask('sv.default.link', { address: IMPOSTOR })).toMatchObject({
      err: { message: "The node's secret differs from ours" },
    });
    impostor!.send(falseBeat('m', { secret: another }));
    await impostor!.closed();

    for (let id = 1; id < 30; id++) {
      expect(await caller.get(`any/m/${id}`)).toMatchObject({ id: `${id}`, pid: owner.pid });
    }
  });

  it('[11] Without a secret in the cluster an impostor can get calls, which others answer when it leaves', async () => {
    const [owner, caller] = await pair({});

    await impostor!.ask('sv.default.who', { nonce: 'mine' });
    expect(await impostor!.ask('sv.default.link', { address: IMPOSTOR })).toMatchObject({
      response: true,
    });
    impostor!.send(falseBeat('m'));
    expect(await impostor!.kind()).toBe(Kind.heartbeat);
    const calls = Array.from({ length: 5 }, () => caller.get('any/m/1'));
    while ((await impostor!.kind()) !== Kind.request) {
      // Skips the frames about nodes.
    }
    impostor!.leave();

    // Others answer the calls that the impostor kept once it has left.
    expect(await Promise.all(calls)).toEqual(
      calls.map(() => expect.objectContaining({ pid: owner.pid })),
    );
  });
});

describe('An impostor that can broadcast to all nodes', () => {
  const cluster = useCluster();

  async function impostorOf(receive?: (packet: Uint8Array) => void): Promise<MemoryTransport> {
    const transport = cluster.network({}).transport();
    const recorded = new RecordingReceiver();
    await transport.start(
      contextOf(IMPOSTOR, receive ? Object.assign(recorded, { receive }) : recorded, {
        namespace: 'default',
      }),
    );
    return transport;
  }

  it.each([
    [
      '[11] An impostor without the secret is ignored',
      { secret },
      [falseBeat('m'), falseBeat('m', { secret: another })],
      1,
    ],
    [
      '[11] [S1] A packet that was signed with the secret in another namespace is ignored',
      { secret },
      [falseBeat('m', { secret, namespace: 'staging' })],
      1,
    ],
    [
      '[11] An impostor with the secret counts as a node',
      { secret },
      [falseBeat('m', { secret })],
      2,
    ],
    ['[11] An impostor counts as a node when there is no secret', {}, [falseBeat('m')], 2],
  ])('%s', async (_, options, beats, owners) => {
    const transport = await impostorOf();
    await cluster.node({
      ...options,
      servings: [{ name: 'm', model: { useFactory: () => (rows: readonly unknown[]) => rows } }],
    });
    const web = await cluster.node(options);
    await web.untilNodes('m', 1);

    beats.forEach((beat) => transport.broadcast(beat));
    await turn();
    await turn();

    expect(web.cluster.selector.candidates('m')).toHaveLength(owners);
    await transport.stop();
  });

  it.each([
    [
      'a reply to a stream',
      Kind.reply,
      (servings: ServingService) => iterated(servings.stream('m', 1)),
    ],
    [
      'a part of a stream to a call',
      Kind.chunk,
      (servings: ServingService) => servings.batchedRun('m', 1),
    ],
    ['the end of a stream to a call', Kind.end, (servings: ServingService) => servings.run('m', 1)],
  ])("[11] An impostor's answer to a call is ignored when it is %s", async (_, kind, call) => {
    const transport = await impostorOf((packet) => {
      const { kind: asked, call: id, header } = decodeFrame(packet, defaultWireLimits);
      if (asked === Kind.request) {
        const { from: to } = header as { from: string };
        const answer = { from: IMPOSTOR, to, index: 0, count: 0 };
        const value = encodeValue('false', defaultWireLimits);
        transport.send(to, encodeFrame({ kind, call: id, header: answer, value }));
      }
    });
    const web = await cluster.node({ attempts: 1 });
    transport.broadcast(falseBeat('m'));
    await web.untilNodes('m');

    const failure = await failureOf(call(web.servings));

    expect(failure).toBeInstanceOf(NodeLostError);
    expect((failure as Error).message).toContain('cannot be read');
    await transport.stop();
  });
});

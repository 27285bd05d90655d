import { describe, expect, it } from '@jest/globals';
import { Injectable, type ModuleMetadata } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { Transport } from '@nestjs/microservices';
import { Batched, InvalidServingError, ServingModule, UnknownServingError } from 'nestjs-serving';
import {
  type DistributionOptions,
  ServingClusterModule,
  MemoryNetwork,
} from 'nestjs-serving/distribution';
import { failureOf } from '../../fixtures/async/failure-of.js';
import { useCluster } from '../../fixtures/cluster/use-cluster.js';

const serving = (name: string) => ({
  name,
  model: { useFactory: () => (rows: readonly unknown[]) => rows },
});

/** The error of an application that imports these modules. */
function bootWith(imports: () => ModuleMetadata['imports']): Promise<unknown> {
  return failureOf(
    (async () => {
      await NestFactory.createApplicationContext(
        { module: class {}, imports: imports() ?? [] },
        { logger: false, abortOnError: false },
      );
    })(),
  );
}

const { TCP, GRPC, NATS, REDIS, MQTT } = Transport;

describe('The boot of a node', () => {
  it.each<[string, object, string]>([
    [
      'an unsupported transport',
      { transport: MQTT },
      'transport Transport.MQTT does not carry servings; allowed are',
    ],
    ['no transport', { peers: [] }, 'transport undefined does not carry servings'],
    [
      'an unknown option',
      { transport: TCP, peer: [] },
      'unknown option "peer" ([]); did you mean "peers"? known are attempts, balance,',
    ],
    [
      'a name for a nodeId',
      { transport: TCP, name: 'a' },
      'unknown option "name" ("a"); known are',
    ],
    [
      'peers as a string',
      { transport: TCP, peers: 'a:1,b:1' },
      '"peers" is "a:1,b:1"; allowed is a list of nodes',
    ],
    [
      'peers without ports',
      { transport: TCP, peers: ['a'] },
      '{ host, port }, { path } or { dns, port }, not "a"',
    ],
    [
      'remotes as a string',
      { transport: TCP, remotes: 'a' },
      '"remotes" is a list of names, or of objects with a name, not "a"',
    ],
    [
      'a remote without a name',
      { transport: TCP, remotes: ['a', undefined] },
      'of objects with a name, not undefined',
    ],
    [
      'a secret that can be guessed',
      { transport: TCP, secret: '123' },
      'allowed is a string of 16 characters or more',
    ],
    [
      'invalid limits',
      { transport: TCP, limits: { call: 1 } },
      '"limits": unknown option "call" (1); did you mean "calls"? known are bytes, calls,',
    ],
    [
      'a downAfter that one late heartbeat exceeds',
      { transport: TCP, downAfter: 1500 },
      'less than two heartbeats of 1000',
    ],
    [
      'a url over TCP',
      { transport: TCP, options: { url: 'a:1' } },
      'Transport.TCP has no "url" in "options"',
    ],
    [
      'servers over TCP',
      { transport: TCP, options: { servers: [] } },
      'set its address with "host" and "port" and "path"',
    ],
    [
      'host and port over gRPC',
      { transport: GRPC, options: { host: 'a', port: 1 } },
      'Transport.GRPC has no "host" and "port" in "options"',
    ],
    [
      'a path over NATS',
      { transport: NATS, options: { path: '/a' } },
      'Transport.NATS has no "path" in "options"',
    ],
    [
      'the path of a peer over gRPC',
      { transport: GRPC, peers: ['/run/a.sock'] },
      'the peer "/run/a.sock" is a Unix socket, which only Transport.TCP connects to',
    ],
    [
      'a url over NATS',
      { transport: NATS, options: { url: 'a' } },
      'set its address with "servers" and "port"',
    ],
    [
      'servers over Redis',
      { transport: REDIS, options: { servers: 'a' } },
      'Transport.REDIS has no "servers" in "options"',
    ],
    [
      'a misspelt port',
      { transport: TCP, options: { prot: 4000 } },
      'Transport.TCP has no "prot" in "options"; set its address with "host" and "port" and "path"',
    ],
    [
      'misspelt servers',
      { transport: NATS, options: { server: 'a:1' } },
      'Transport.NATS has no "server" in "options"',
    ],
    [
      'peers over NATS',
      { transport: NATS, peers: ['a:1'] },
      'Transport.NATS has no "peers", since its nodes connect to a broker',
    ],
    [
      'insecure over Redis',
      { transport: REDIS, insecure: true },
      'Transport.REDIS has no "insecure"',
    ],
  ])('[11] A node does not boot with %s', async (_, options, message) => {
    const failure = await bootWith(() => [
      ServingModule.forRoot(),
      // Options from a configuration are not checked by TypeScript.
      ServingClusterModule.forRoot(options as DistributionOptions),
    ]);

    expect(failure).toBeInstanceOf(InvalidServingError);
    expect(String(failure)).toContain(message);
    expect(String(failure)).toMatch(/ServingClusterModule|peer/);
  });

  it('[11] A ServingClusterModule without ServingModule.forRoot is refused at boot', async () => {
    const transport = new MemoryNetwork().transport();

    const failure = await bootWith(() => [ServingClusterModule.forRoot({ transport })]);

    expect(failure).toBeInstanceOf(InvalidServingError);
    expect(String(failure)).toContain('import ServingModule.forRoot next to it');
  });

  it('[11] A ServingClusterModule that is imported twice is refused at boot', async () => {
    const network = new MemoryNetwork();

    const failure = await bootWith(() => [
      ServingModule.forRoot(),
      ServingClusterModule.forRoot({ transport: network.transport() }),
      ServingClusterModule.forRoot({ transport: network.transport() }),
    ]);

    expect(failure).toBeInstanceOf(InvalidServingError);
    expect(String(failure)).toContain('ServingClusterModule is imported more than once');
  });

  it.each([
    ['missing', { secret: undefined }, 'option "secret" is undefined, so that no packet would be'],
    ['too short', { secret: 'known-word' }, 'option "secret" cannot be used; allowed is a string'],
    ['old and too short', { secret: ['x', 'known-word-of-long-ago'] }, 'option "secret" cannot be'],
    ['misspelt', { secert: 'known-word-of-long-ago' }, '"secert"; did you mean "secret"?'],
  ])('[23.21] A secret that is %s fails the boot and is not shown', async (_, wrong, message) => {
    const failure = await bootWith(() => [
      ServingModule.forRoot(),
      ServingClusterModule.forRoot({ transport: new MemoryNetwork().transport(), ...wrong }),
    ]);

    expect(failure).toBeInstanceOf(InvalidServingError);
    expect(String(failure)).toContain(message);
    expect(String(failure)).not.toContain('known-word');
  });

  it('[11] A remote with the name of an own serving is refused at boot', async () => {
    const transport = new MemoryNetwork().transport();

    const failure = await bootWith(() => [
      ServingModule.forRoot({ servings: [serving('a')] }),
      ServingClusterModule.forRoot({ transport, remotes: ['a'] }),
    ]);

    expect(String(failure)).toContain('Serving "a" is registered more than once');
  });

  it('[11] A factory of forRootAsync whose remotes differ from "names" is refused at boot', async () => {
    const transport = new MemoryNetwork().transport();

    const failure = await bootWith(() => [
      ServingModule.forRoot(),
      ServingClusterModule.forRootAsync({
        names: ['a'],
        useFactory: () => ({ transport, remotes: ['a', 'b'] }),
      }),
    ]);

    expect(failure).toBeInstanceOf(InvalidServingError);
    expect(String(failure)).toContain('returns the remotes [a, b], but "names" lists [a]');
  });
});

describe('In a cluster', () => {
  const cluster = useCluster();
  it('[11] A call that finds no node lists the known nodes and their servings', async () => {
    const web = await cluster.node({ discoveryTimeout: 0 });
    const failed = async (name: string) =>
      String(await failureOf(web.servings.batchedRun(name, 1)));

    expect(await failed('c')).toBe(
      'UnknownServingError: There is no serving "c" here, and namespace "default" has no node that could have it',
    );
    await cluster.node({ nodeId: 'one', servings: [serving('a')] });
    await cluster.node({
      nodeId: 'two',
      servings: [{ ...serving('b'), distribution: { weight: 0 } }],
    });
    while (web.cluster.selector.others.length < 2) {
      await web.cluster.selector.nextChange(10);
    }
    expect(await failed('c')).toMatch(
      / "c" here, and no known node has it: "one", "two"\. They have "a", "b"$/,
    );
    expect(await failed('b')).toMatch(
      /^ServingUnavailableError: There is no serving "b" here, and no node that has it takes calls now: "two"$/,
    );
  });

  it('[11] A declared remote serving is unavailable and not unknown while its nodes are away, and health has the reason', async () => {
    const web = await cluster.node({ discoveryTimeout: 0, remotes: ['a'] });

    expect(await failureOf(web.servings.batchedRun('a', 1))).toMatchObject({
      code: 'SERVING_UNAVAILABLE',
      statusCode: 503,
    });
    expect(await failureOf(web.servings.batchedRun('b', 1))).toMatchObject({
      code: 'SERVING_UNKNOWN',
      statusCode: 500,
    });
    expect(web.servings.health()).toMatchObject([
      { isReady: false, reason: 'no node that has it takes calls now' },
    ]);
    await cluster.node({ servings: [serving('a')] });
    await web.untilNodes('a');
    expect(web.servings.health()).toEqual([
      { serving: 'a', state: 'ready', isReady: true, isLive: true, queued: 0, partitions: [] },
    ]);
  });

  it('[11] A misspelt serving of a @Batched() method is refused with the method and where remote names belong', async () => {
    @Injectable()
    class Loud {
      @Batched('shoutr')
      loud(text: string): string {
        return text;
      }
    }
    const root = {
      module: class {},
      imports: [ServingModule.forRoot({ servings: [serving('shouter')] })],
      providers: [Loud],
    };

    const failure = await failureOf(
      NestFactory.createApplicationContext(root, { logger: false, abortOnError: false }),
    );

    expect(failure).toBeInstanceOf(UnknownServingError);
    expect(String(failure)).toContain(
      'Loud.loud is @Batched("shoutr"). There is no serving "shoutr"; registered are: shouter; those of other nodes are named in "remotes" of ServingClusterModule',
    );
  });
});

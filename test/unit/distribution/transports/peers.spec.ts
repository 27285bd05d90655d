import { beforeEach, expect, it } from '@jest/globals';
import { firstValueFrom } from 'rxjs';
import {
  type Endpoint,
  endpointsOf,
  type Lookup,
  type Peer,
  type Peers,
} from '../../../../lib/extensions/distribution/transports/peers.js';
import { InvalidServingError } from 'nestjs-serving';
import { recordWarnings } from '../../../fixtures/recorded-warnings.js';
import { later, useVirtualTime } from '../../../fixtures/async/virtual-time.js';

useVirtualTime();

let warnings: string[];

beforeEach(() => {
  warnings = recordWarnings();
});

/** The lists that were emitted during this many milliseconds. */
async function listsOf(peers: Peers, ms: number, lookup?: Lookup): Promise<string[]> {
  const lists: string[] = [];
  const subscription = endpointsOf(peers, lookup).subscribe((list) =>
    lists.push(list.map(nameOf).join(' ')),
  );
  await later(ms);
  subscription.unsubscribe();
  return lists;
}

function nameOf(endpoint: Endpoint): string {
  return 'path' in endpoint ? endpoint.path : `${endpoint.host}/${endpoint.port}`;
}

it('[11] A list of hosts and ports is resolved at once and stays', async () => {
  const peers = ['10.0.0.1:5000', 'model-2:80', '[::1]:5000', { host: 'fe80::1', port: 1 }];

  expect(await listsOf(peers, 60_000)).toEqual(['10.0.0.1/5000 model-2/80 ::1/5000 fe80::1/1']);
});

it('[11] A path is a peer on this machine, as text and as an object', async () => {
  const peers = ['/run/a.sock', { path: '/run/b.sock' }, { dns: 'models', port: 7 }];

  expect(await listsOf(peers, 1, async () => ['x'])).toEqual(['/run/a.sock /run/b.sock x/7']);
});

it.each<[string, Peer]>([
  ['with a relative path', { path: 'a.sock' }],
  ['with a path that is too long for a Unix socket', `/${'a'.repeat(103)}`],
  ['with a path that is no string', { path: 5 as unknown as string }],
])('[11] A peer %s fails at boot', (_, peer) => {
  expect(() => endpointsOf([peer])).toThrow(InvalidServingError);
  expect(() => endpointsOf([peer])).toThrow('allowed is an absolute path of at most 103 bytes');
});

it.each<[string, Peer]>([
  ['without a port', '10.0.0.1'],
  ['with an invalid port', '10.0.0.1:x'],
  ['with port 0', '10.0.0.1:0'],
  ['with too large a port', { host: 'a', port: 65_536 }],
  ['with half a port', { dns: 'a', port: 1.5 }],
  ['without a host', ':5000'],
  ['without a name', { dns: '', port: 1 }],
  ['of IPv6 without brackets', '::1:5000'],
])('[11] A peer %s fails at boot', (_, peer) => {
  expect(() => endpointsOf([peer])).toThrow(InvalidServingError);
  expect(() => endpointsOf([peer])).toThrow(
    'A peer is "host:port", the path of a Unix socket, { host, port }, { path } or { dns, port }, not ',
  );
});

it('[11] Every address of a DNS name is a peer, and the name is resolved periodically', async () => {
  let round = 0;
  const lookup: Lookup = async (name) => [`${name}-1`, `${name}-${++round + 1}`];

  expect(
    await listsOf(
      [{ dns: 'models', port: 7, refresh: 500 }, 'x:1', { dns: 'models', port: 8 }],
      999,
      lookup,
    ),
  ).toEqual([
    'models-1/7 models-2/7 x/1 models-1/8 models-3/8',
    'models-1/7 models-4/7 x/1 models-1/8 models-5/8',
  ]);
  expect(await listsOf([{ dns: 'models', port: 7 }], 19_999, lookup)).toHaveLength(2);
});

it('[11] A name that cannot be resolved keeps its addresses, with one warning until it is resolved again', async () => {
  const answers = [['a'], undefined, undefined, ['b'], undefined];
  const lookup: Lookup = async () => {
    const answer = answers.shift();
    if (!answer) {
      throw new Error('ENOTFOUND');
    }
    return answer;
  };

  expect(await listsOf([{ dns: 'models', port: 7, refresh: 10 }], 49, lookup)).toEqual([
    'a/7',
    'a/7',
    'a/7',
    'b/7',
    'b/7',
  ]);
  expect(warnings).toEqual(Array(2).fill('The addresses of models are not known: ENOTFOUND'));
});

it('[11] A function of peers is called periodically, and an error keeps the last list', async () => {
  const answers: (() => Peer[])[] = [
    () => ['a:1'],
    () => {
      throw new Error('no list');
    },
    () => ['not a peer'],
    () => ['a:1', { dns: 'b', port: 2 }],
  ];

  expect(
    await listsOf(
      () => answers.shift()!(),
      39_999,
      async () => ['b1', 'b2'],
    ),
  ).toEqual(['a/1', 'a/1 b1/2 b2/2']);
  expect(warnings).toEqual(['The peers are not known: no list']);
});

it('[11] Names of the local machine are resolved', async () => {
  const list = await firstValueFrom(endpointsOf([{ dns: 'localhost', port: 7 }]));

  expect(['127.0.0.1/7', '::1/7']).toEqual(expect.arrayContaining(list.map(nameOf)));
  expect(list).not.toEqual([]);
});

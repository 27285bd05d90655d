import { once } from 'node:events';
import { describe, expect, it } from '@jest/globals';
import { firstValueFrom, of, throwError, toArray } from 'rxjs';
import type { JsonHandler } from '../../../lib/extensions/distribution/transport.js';
import { InvalidInputError, OverloadedError } from '../../../lib/core/errors.js';
import { Awaited, until } from '../../fixtures/async/awaited.js';
import { numberedPacket } from '../../fixtures/async/recording-receiver.js';
import { useTcpNodes } from '../../fixtures/cluster/tcp-nodes.js';

const { start, clientOf, connectTo } = useTcpNodes();

describe('The TCP port of a node', () => {
  const handlers = new Map<string, JsonHandler>([
    ['double', async (data) => Number(data) * 2],
    ['a.b', () => of('one', 'two')],
    ['picky', () => throwError(() => new InvalidInputError('7 is no image', { retryAfter: 2 }))],
    ['full', () => Promise.reject(new OverloadedError('The queue of "full" holds 12 rows'))],
    [
      'broken',
      () => {
        throw new TypeError('a secret path');
      },
    ],
  ]);

  it('[11] Clients of Nest over TCP get values, streams and errors', async () => {
    const node = await start('a', {}, handlers);
    const client = clientOf(node);
    const run = (name: string): Promise<unknown[]> =>
      firstValueFrom(client.send(`sv.test.s.${name}`, 21).pipe(toArray()));

    await expect(run('double')).resolves.toEqual([42]);
    await expect(run('a=2Eb')).resolves.toEqual(['one', 'two']);
    await expect(run('picky')).rejects.toEqual({
      name: 'InvalidInputError',
      code: 'SERVING_INVALID_INPUT',
      statusCode: 400,
      message: '7 is no image',
      retryAfter: 2,
    });
    await expect(run('full')).rejects.toEqual({
      name: 'OverloadedError',
      code: 'SERVING_OVERLOADED',
      statusCode: 503,
      message: 'Service Unavailable',
    });
    await expect(run('broken')).rejects.toEqual({
      name: 'Error',
      code: 'INTERNAL',
      statusCode: 500,
      message: 'Internal Server Error',
    });
    await expect(run('unknown')).rejects.toBe(
      'There is no matching message handler defined in the remote service.',
    );
  });

  it('[11] A node that stops answers clients of Nest first', async () => {
    const answer = new Awaited<string>();
    const node = await start('a', {}, new Map([['late', () => answer.value]]));
    const client = clientOf(node);
    const reply = firstValueFrom(client.send('sv.test.s.late', 1));
    const idle = once(await connectTo(node), 'close');
    await until(() => answer.isAwaited);

    answer.give('at last');
    await node.transport.stop();

    await expect(reply).resolves.toBe('at last');
    await idle;
  });

  it.each([
    ['a packet on a connection that is no link', Buffer.from(numberedPacket(1))],
    ['neither packet nor message', Buffer.from('GET / HTTP/1.1\r\n\r\n')],
    ['a message of Nest that is no JSON', Buffer.from('3#abc')],
  ])('[11] A connection with %s is closed, and no other', async (_, bytes) => {
    const node = await start('a', {}, handlers);
    const client = clientOf(node);
    await client.connect();
    const socket = await connectTo(node);

    socket.write(bytes);
    await once(socket, 'close');

    await expect(firstValueFrom(client.send('sv.test.s.double', 2))).resolves.toBe(4);
  });
});

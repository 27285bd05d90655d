import { createServer, request as httpRequest } from 'node:http';
import { once } from 'node:events';
import { type AddressInfo, connect } from 'node:net';
import { describe, expect, it } from '@jest/globals';
import { CallCancelledError } from 'nestjs-serving';
import { readBody } from '../../../lib/extensions/inference-protocol/server/http/read-body.js';

/** The body of a request that is sent in these parts, as the server reads it. */
async function bodyOf(parts: readonly Buffer[], aligned: number): Promise<Buffer> {
  const server = createServer();
  const read = new Promise<Buffer>((resolve, reject) => {
    server.on('request', (request, response) => {
      readBody(request, { limit: 1000, aligned })
        .then(resolve, reject)
        .finally(() => response.end());
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const request = httpRequest({ port, method: 'POST' });
  parts.forEach((part) => request.write(part));
  request.end();
  try {
    await once(request, 'response');
    return await read;
  } finally {
    server.close();
    server.closeAllConnections();
  }
}

describe('The body of a request', () => {
  it.each([0, 1, 7, 8, 150])(
    '[18.3] The bytes behind %d bytes of JSON lie where a tensor can be a view of them',
    async (length) => {
      const parts = [Buffer.alloc(length, 'a'), Buffer.from('12345678')];
      const body = await bodyOf(parts, length);

      expect(body).toEqual(Buffer.concat(parts));
      expect((body.byteOffset + length) % 8).toBe(0);
    },
  );

  it.each(['end', 'resetAndDestroy'] as const)(
    '[P8] A client that leaves inside its body by %s has cancelled its call, which is no fault of the application',
    async (how) => {
      const server = createServer();
      const failed = new Promise((resolve) => {
        server.on('request', (request) => {
          readBody(request, { limit: 1000, aligned: 0 }).catch(resolve);
          socket[how]();
        });
      });
      server.listen(0, '127.0.0.1');
      await once(server, 'listening');
      const { port } = server.address() as AddressInfo;
      const socket = connect(port, '127.0.0.1').on('error', () => {});
      socket.write('POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"inputs"');

      expect(await failed).toBeInstanceOf(CallCancelledError);
      server.close();
    },
  );
});

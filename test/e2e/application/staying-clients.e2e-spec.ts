import { describe, expect, it } from '@jest/globals';
import { CallCancelledError, currentSignal, withOrigin } from 'nestjs-serving';
import { once } from 'node:events';
import type { Server } from 'node:http';
import { describeOnPlatforms } from '../../fixtures/partitions/platforms.js';
import { until } from '../../fixtures/async/streams.js';
import {
  connect,
  connectionsOf,
  held,
  signals,
  start,
  useHeldCalls,
} from '../../fixtures/serving/held-calls.js';

describeOnPlatforms('Clients over HTTP', (listen) => {
  describe('that stay', () => {
    useHeldCalls();

    it('[7.3] Calls on a kept-alive connection are answered, and only the last one is cancelled when the client leaves', async () => {
      const site = await start(listen);
      const client = await connect(site);
      for (const text of ['a', 'b', 'c']) {
        client.get(`/service/${text}`);
        await until(() => held.batches.length === 1);
        held.next().finish([text.toUpperCase()]);
        await client.answers(site.ends.length);
      }
      client.get('/service/d');
      await until(() => held.batches.length === 1);

      client.leave();
      await until(() => site.ends.length === 4);

      expect(await client.answers(3)).toEqual(
        ['A', 'B', 'C'].map((body) => ({ status: 200, body })),
      );
      expect(site.ends.map(({ error }) => error)).toEqual([
        undefined,
        undefined,
        undefined,
        expect.any(CallCancelledError),
      ]);
    });

    it('[7.3] A kept-alive connection has one more listener, whatever the number of its requests', async () => {
      const site = await start(listen);
      const [connections, client] = [connectionsOf(site), await connect(site)];
      await until(() => connections.length === 1);
      const before = connections[0]!.listenerCount('close');
      client.get('/signals', '/signals', '/service/a', '/service/b');
      await until(() => held.batches.length === 1);
      // The other listener belongs to Node, for the response whose turn it is.
      expect(connections[0]!.listenerCount('close')).toBe(before + 2);

      held.next().finish(['A', 'B']);
      await client.answers(4);

      expect(connections[0]!.listenerCount('close')).toBe(before + 1);
      client.leave();
      await once(connections[0]!, 'close');
      expect(signals.map((signal) => signal!.aborted)).toEqual([false, false, false, false]);
    });

    it('[7.3] A client gets all answers to its pipelined requests in order', async () => {
      const site = await start(listen);
      const client = await connect(site);
      client.get('/service/a', '/service/b', '/service/c');
      await until(() => held.batches.length === 1 && site.waiting() === 1);

      held.next().finish(['A', 'B']);
      await until(() => held.batches.length === 1);
      held.next().finish(['C']);

      expect(await client.answers(3)).toEqual(
        ['A', 'B', 'C'].map((body) => ({ status: 200, body })),
      );
    });

    it('[7.3] A half-closed connection is still answered when the server allows it', async () => {
      const site = await start(listen);
      const connections = connectionsOf(site);
      Object.assign(site.app.getHttpServer() as Server, { httpAllowHalfOpen: true });
      const client = await connect(site);
      client.get('/service/a');
      await until(() => held.batches.length === 1);

      client.endSpeaking();
      await once(connections[0]!, 'end');
      held.next().finish(['A']);

      expect(await client.answers(1)).toEqual([{ status: 200, body: 'A' }]);
    });

    it('[7.3] A half-closed connection is closed by Node by default, which cancels its call', async () => {
      const site = await start(listen);
      const client = await connect(site);
      client.get('/service/a');
      await until(() => held.batches.length === 1);

      client.endSpeaking();
      await until(() => site.ends.length === 1);

      expect(site.ends).toMatchObject([{ error: { code: 'SERVING_CANCELLED' }, cancelled: true }]);
      expect(await client.answers(1)).toEqual([]);
    });

    it('A request has one signal in all of its handlers, also inside withOrigin()', async () => {
      const site = await start(listen);

      await site.get('/signals');

      expect(signals).toEqual([expect.any(AbortSignal), signals[0]]);
      expect(signals[1]).toBe(signals[0]);
    });
  });
});

describe('Outside of a request', () => {
  it('There is no current signal outside of a request', () => {
    expect(currentSignal()).toBeUndefined();
    expect(withOrigin('nightly', currentSignal)).toBeUndefined();
  });
});

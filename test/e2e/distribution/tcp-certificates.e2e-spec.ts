import { once } from 'node:events';
import { expect, it } from '@jest/globals';
import type { ClientTCP } from '@nestjs/microservices';
import { firstValueFrom } from 'rxjs';
import { describeWithCertificate } from '../../fixtures/cluster/certificates.js';
import { numberedPacket } from '../../fixtures/async/recording-receiver.js';
import { has, useTcpNodes } from '../../fixtures/cluster/tcp-nodes.js';

const { start, clientOf, connectTo } = useTcpNodes();

function double(client: ClientTCP): Promise<unknown> {
  return firstValueFrom(client.send('sv.test.s.double', 21));
}

describeWithCertificate('nodes with certificates', (certificate) => {
  const tls = { ...certificate, requestCert: true };

  it('[11] Nodes with certificates connect on a public port and serve clients of Nest', async () => {
    const a = await start(
      'a',
      { options: { host: '0.0.0.0', tlsOptions: tls } },
      new Map([['double', async (data) => Number(data) * 2]]),
    );
    const b = await start('b', {
      options: { tlsOptions: tls },
      peers: [`localhost:${a.transport.port}`],
    });
    await Promise.all([a.recorded.until(has('found b')), b.recorded.until(has('found a'))]);
    const packet = numberedPacket(1, a.transport.maxPacket);
    a.transport.send('b', packet);
    b.transport.send('a', packet);
    await Promise.all(
      [a, b].map(({ recorded }) => recorded.until(({ packets }) => packets.length === 1)),
    );
    const client = clientOf(a, { tlsOptions: certificate });

    await expect(double(client)).resolves.toBe(42);
    expect(Buffer.compare(a.recorded.packets[0]!, packet)).toBe(0);
    await b.transport.stop();
    await a.recorded.until(has('gone b'));
  });

  it('[11] A silent connection does not delay stopping with certificates', async () => {
    const a = await start('a', { options: { tlsOptions: tls } });
    const stranger = await connectTo(a);
    const closed = once(stranger, 'close');

    await a.transport.stop();

    await closed;
  });

  it('[11] A peer without a certificate is refused', async () => {
    const a = await start(
      'a',
      { options: { tlsOptions: tls } },
      new Map([['double', async (data) => Number(data) * 2]]),
    );

    await expect(double(clientOf(a, { tlsOptions: { ca: certificate.ca } }))).rejects.toThrow();
    await expect(double(clientOf(a))).rejects.toThrow();
  });
});

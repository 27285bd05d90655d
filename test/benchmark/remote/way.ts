import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';
import { Transport } from '@nestjs/microservices';

/** How a caller and a process reach each other. */
export type Way =
  | { readonly transport: Transport.TCP; readonly options: { readonly port: number } }
  | { readonly transport: Transport.NATS; readonly options: { readonly servers: string } };

/** By a port of this machine that nobody listens on. */
export async function tcpWay(): Promise<Way> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return { transport: Transport.TCP, options: { port } };
}

export function natsWay(servers: string): Way {
  return { transport: Transport.NATS, options: { servers } };
}

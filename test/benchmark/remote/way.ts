import { randomUUID } from 'node:crypto';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Transport } from '@nestjs/microservices';
import { freePort } from '../../fixtures/http/free-port.js';

/** How a caller and a process reach each other. */
export type Way =
  | { readonly transport: Transport.TCP; readonly options: { readonly port: number } }
  | { readonly transport: Transport.TCP; readonly options: { readonly path: string } }
  | { readonly transport: Transport.NATS; readonly options: { readonly servers: string } };

/** By a port of this machine that nobody listens on. */
export async function tcpWay(): Promise<Way> {
  return { transport: Transport.TCP, options: { port: await freePort() } };
}

/** By a Unix socket that nobody listens at. */
export function unixWay(): Way {
  const path = join(tmpdir(), `serving-${randomUUID()}.sock`);
  return { transport: Transport.TCP, options: { path } };
}

export function natsWay(servers: string): Way {
  return { transport: Transport.NATS, options: { servers } };
}

import type { Socket } from 'node:net';
import { ClientTCP, type TcpClientOptions } from '@nestjs/microservices';
import { firstValueFrom } from 'rxjs';
import type { Dialling } from './dials.js';
import type { Links } from './links.js';
import type { Opening } from './opening.js';
import type { Endpoint } from './peers.js';
import type { TcpLink } from './tcp-link.js';

/** Dials with Nest's own TCP client. */
export function dialByTcp(
  { host, port }: Endpoint,
  options: TcpClientOptions['options'],
  opening: Opening<Socket, TcpLink>,
  links: Links<Socket, TcpLink>,
): Dialling {
  const client = new QuietClient({ ...options, host, port });
  const opened = opening.dial(
    () => client.unwrap(),
    (pattern, data) => firstValueFrom(client.send<unknown>(pattern, data)),
  );
  return {
    opened,
    get failure() {
      return client.failure;
    },
    end: () => client.end((socket) => links.uses(socket)),
  };
}

/** Errors are told by who dials. */
class QuietClient extends ClientTCP {
  /** Why the connection ended, where Nest says only that it did. */
  failure: unknown;

  override handleError(error: unknown): void {
    this.failure ??= error;
  }

  end(isUsed: (socket: Socket) => boolean): void {
    const socket: Socket | undefined = this.socket?.netSocket;
    if (!socket || !isUsed(socket)) {
      this.close();
      socket?.destroy();
    }
  }
}

import type { Socket } from 'node:net';
import type { Type } from '@nestjs/common';
import { JsonSocket, type TcpSocket } from '@nestjs/microservices';
import { FrameError } from '../../wire/prelude.js';
import { PacketSplitter } from './tcp-packet-splitter.js';

/**
 * A socket for Nest's TCP servers and clients that accepts packets beside Nest's messages: they are
 * events `packet` of the net socket. A packet without a listener closes the connection.
 *
 * @param limit the largest packet in bytes
 * @param mostText limit in bytes of all of Nest's messages
 * @param options of Nest's socket
 */
export function packetSocket(
  limit: number,
  mostText: number,
  options: ConstructorParameters<typeof JsonSocket>[1],
): Type<TcpSocket> {
  return class PacketSocket extends JsonSocket {
    private readonly splitter = new PacketSplitter({
      text: (bytes) => super.handleData(bytes),
      packet: (bytes) => this.netSocket.emit('packet', bytes),
      limit: () => {
        if (this.netSocket.listenerCount('packet') === 0) {
          throw new FrameError('A packet on a connection that is no link');
        }
        return limit;
      },
      mostText,
    });

    constructor(socket: Socket) {
      super(socket, options);
    }

    protected override handleData(data: Buffer | string): void {
      try {
        this.splitter.push(typeof data === 'string' ? Buffer.from(data) : data);
      } catch (error) {
        if (!(error instanceof FrameError)) {
          throw error;
        }
        this.netSocket.destroy(error);
      }
    }
  };
}

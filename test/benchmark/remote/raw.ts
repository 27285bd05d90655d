import { ClientNats, ClientTCP, ServerNats, ServerTCP, Transport } from '@nestjs/microservices';
import { BinarySocket } from './binary-socket.js';
import type { Way } from './way.js';

/**
 * The baseline of P11: bytes by Nest's own transport, and back. Who they belong to is all that is
 * seen to.
 */
export function rawClient({ transport, options }: Way): ClientTCP | ClientNats {
  return transport === Transport.TCP
    ? new ClientTCP({ ...options, socketClass: BinarySocket })
    : new ClientNats({
        ...options,
        serializer: { serialize: bytesIn },
        deserializer: { deserialize: answerIn },
      });
}

/** Ends with its process. */
export async function startRawServer({ transport, options }: Way): Promise<void> {
  const server =
    transport === Transport.TCP
      ? new ServerTCP({ ...options, socketClass: BinarySocket })
      : new ServerNats({
          ...options,
          serializer: { serialize: bytesIn },
          deserializer: { deserialize: questionIn },
        });
  server.addHandler('echo', async (data: unknown) => data);
  await new Promise<void>((resolve, reject) => {
    void server.listen((error) => (error ? reject(error) : resolve()));
  });
}

/** A message of NATS, which has a subject to answer to. */
interface Message {
  readonly data: Uint8Array;
}

const bytesIn = ({
  data,
  response,
}: {
  data?: Uint8Array;
  response?: Uint8Array;
}): Partial<Message> => ({
  data: data ?? response,
});
const questionIn = ({ data }: Message): object => ({ id: 'any', pattern: 'echo', data });
const answerIn = ({ data }: Message): object => ({ response: data, isDisposed: true });

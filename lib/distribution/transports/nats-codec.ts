import { type Deserializer, NatsRequestJSONDeserializer, type Serializer } from '@nestjs/microservices';
import { InvalidOutputError } from '../../errors.js';

/** Reads packets, which begin with 0x00 as no JSON does, beside the messages of Nest. */
export class PacketsAndMessages implements Deserializer {
  private readonly messages: Deserializer = new NatsRequestJSONDeserializer();

  deserialize(value: unknown, options?: Record<string, unknown>): unknown {
    const data = bytesOf(value);
    return data?.[0] === 0 ? { pattern: options?.['channel'], data } : this.messages.deserialize(value, options);
  }
}

/** Nest 11 gives the bytes of a message, Nest 12 the message. */
function bytesOf(value: unknown): Uint8Array | undefined {
  const data: unknown = typeof value === 'object' && value !== null && 'data' in value ? value.data : value;
  return data instanceof Uint8Array ? data : undefined;
}

/**
 * Writes replies as Nest does, and an error in place of what NATS would not take: Nest says in its log alone that it could not answer, and the client
 * would wait for ever.
 */
export class BoundedReplies implements Serializer {
  constructor(private readonly mostBytes: () => number) {}

  serialize(reply: { readonly id?: unknown }): { readonly data: Uint8Array } {
    const data = Buffer.from(JSON.stringify(reply));
    const most = this.mostBytes();
    if (data.byteLength <= most) {
      return { data };
    }
    const error = new InvalidOutputError(`The reply has ${data.byteLength} bytes, where the NATS server takes at most ${most}`);
    return { data: Buffer.from(JSON.stringify({ id: reply.id, err: error.toJSON(), isDisposed: true })) };
  }
}

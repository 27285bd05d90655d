import type { Deserializer, Serializer } from '@nestjs/microservices';
import { InvalidOutputError } from '../../../../index.js';

/** Nest's message context, as far as we use it. */
interface Circumstances {
  readonly channel?: string;
  readonly replyTo?: string;
}

/**
 * Reads messages from Nest and from other clients. Another client's message is all data, and is
 * answered if it has a reply subject.
 */
export class AnyMessage implements Deserializer {
  deserialize(value: unknown, { channel, replyTo }: Circumstances = {}): unknown {
    const message: unknown = JSON.parse(Buffer.from(bytesOf(value)).toString());
    const isNests =
      typeof message === 'object' &&
      message !== null &&
      ('pattern' in message || 'data' in message);
    return {
      pattern: channel,
      ...(replyTo && { id: replyTo }),
      ...(isNests ? message : { data: message }),
    };
  }
}

/** Nest 11 passes a message's bytes, Nest 12 the message. */
function bytesOf(value: unknown): Uint8Array {
  const data: unknown =
    typeof value === 'object' && value !== null && 'data' in value ? value.data : value;
  if (!(data instanceof Uint8Array)) {
    throw new TypeError('A message of NATS without its bytes');
  }
  return data;
}

/**
 * Writes replies like Nest, but an error if the reply is too large for NATS: Nest would only log it
 * and the client would wait forever.
 */
export class BoundedReplies implements Serializer {
  constructor(private readonly mostBytes: () => number) {}

  serialize(reply: { readonly id?: unknown }): { readonly data: Uint8Array } {
    const data = Buffer.from(JSON.stringify(reply));
    const most = this.mostBytes();
    if (data.byteLength <= most) {
      return { data };
    }
    const error = new InvalidOutputError(
      `The reply has ${data.byteLength} bytes, where the NATS server takes at most ${most}`,
    );
    return {
      data: Buffer.from(JSON.stringify({ id: reply.id, err: error.toJSON(), isDisposed: true })),
    };
  }
}

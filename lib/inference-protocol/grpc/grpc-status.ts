import type { Metadata, StatusObject } from '@grpc/grpc-js';
import type { ErrorAnswer } from '../error-answers.js';

/** How long a client waits before it tries again, in milliseconds, by gRPC's retry design. */
const PUSHBACK = 'grpc-retry-pushback-ms';

/** The status of an error. `metadata` is new and empty. */
export function statusOf(
  { grpc, message, retryAfter }: ErrorAnswer,
  metadata: Metadata,
): StatusObject {
  if (retryAfter !== undefined) {
    metadata.set(PUSHBACK, String(retryAfter * 1000));
  }
  // Half of a surrogate pair, which a cut text may end with, cannot be encoded.
  return { code: grpc, details: Buffer.from(message).toString(), metadata };
}

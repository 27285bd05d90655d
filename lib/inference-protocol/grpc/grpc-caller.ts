import { CallCancelledError } from '../../errors.js';
import type { InferenceCaller } from '../inference-request.js';
import type { AnyCall } from './grpc-types.js';

/** The client of a call: its deadline, and a signal that aborts when it has left. */
export function grpcCaller(call: AnyCall, tenant: string | undefined): InferenceCaller {
  const left = new AbortController();
  const abort = (): void =>
    left.abort(new CallCancelledError('The client has left before it was answered'));
  call.once('cancelled', abort);
  if (call.cancelled) {
    abort();
  }
  const deadline = Number(call.getDeadline());
  return {
    signal: left.signal,
    deadline: deadline < Infinity ? deadline : undefined,
    tenant,
    origin: 'rpc',
  };
}

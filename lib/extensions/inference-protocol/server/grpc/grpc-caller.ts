import { type CanActivate, type ExecutionContext, Injectable } from '@nestjs/common';
import { CallCancelledError } from '../../../../index.js';
import type { InferenceCaller } from '../inference-request.js';
import { InferenceServer } from '../inference-server.js';
import type { AnyCall } from './grpc-types.js';

/** The signal aborts when the client disconnects. */
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

/** Nest makes one instance for `@UseGuards` and one for injection; both need these. */
const tenants = new WeakMap<AnyCall, string | undefined>();

/** A guard, because only guards get the context. */
@Injectable()
export class GrpcTenants implements CanActivate {
  constructor(private readonly server: InferenceServer) {}

  canActivate(context: ExecutionContext): boolean {
    const { tenant } = this.server.options;
    if (tenant) {
      tenants.set(context.getArgByIndex<AnyCall>(2), tenant(context));
    }
    return true;
  }

  of(call: AnyCall): string | undefined {
    return tenants.get(call);
  }
}

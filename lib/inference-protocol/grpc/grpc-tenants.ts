import { type CanActivate, type ExecutionContext, Injectable } from '@nestjs/common';
import { InferenceServer } from '../inference-server.js';
import type { AnyCall } from './grpc-types.js';

/** Nest makes an instance for `@UseGuards` and another to inject; both need the same tenants. */
const tenants = new WeakMap<AnyCall, string | undefined>();

/** A guard that refuses nobody: it keeps the tenant of each call, which only guards can find. */
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

import {
  type CanActivate,
  createParamDecorator,
  type ExecutionContext,
  ForbiddenException,
  Inject,
  Injectable,
  UnauthorizedException,
} from '@nestjs/common';
import type { Metadata } from '@grpc/grpc-js';
import type { IncomingMessage } from 'node:http';
import { digestOf, type Settings, settings } from './settings.js';

export const apiKeyHeader = 'x-api-key';

/** By request of HTTP, or by metadata of a gRPC call. */
const tenants = new WeakMap<object, string>();

/** Admits requests and gRPC calls with an API key. */
@Injectable()
export class ApiKeyGuard implements CanActivate {
  constructor(@Inject(settings.KEY) private readonly config: Settings) {}

  canActivate(context: ExecutionContext): boolean {
    const { caller, key } = callerOf(context);
    const tenant = this.config.tenants.get(digestOf(key));
    if (tenant === undefined) {
      throw new UnauthorizedException(`Send your API key in the header ${apiKeyHeader}`);
    }
    tenants.set(caller, tenant);
    return true;
  }
}

/** After {@link ApiKeyGuard}: admits the tenant `operator` alone. */
@Injectable()
export class OperatorGuard implements CanActivate {
  canActivate(context: ExecutionContext): boolean {
    if (tenantOf(context) !== 'operator') {
      throw new ForbiddenException('Only the tenant "operator" changes versions');
    }
    return true;
  }
}

/** The tenant that the API key of the caller belongs to. */
export function tenantOf(context: ExecutionContext): string | undefined {
  return tenants.get(callerOf(context).caller);
}

export const Tenant = createParamDecorator((_: unknown, context: ExecutionContext) =>
  tenantOf(context),
);

function callerOf(context: ExecutionContext): { readonly caller: object; readonly key: string } {
  if (context.getType() === 'rpc') {
    const caller = context.switchToRpc().getContext<Metadata>();
    return { caller, key: String(caller.get(apiKeyHeader)[0] ?? '') };
  }
  const caller = context.switchToHttp().getRequest<IncomingMessage>();
  return { caller, key: String(caller.headers[apiKeyHeader] ?? '') };
}

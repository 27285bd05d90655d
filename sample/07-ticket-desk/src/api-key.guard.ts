import {
  type CanActivate,
  createParamDecorator,
  type ExecutionContext,
  Inject,
  Injectable,
  UnauthorizedException,
} from '@nestjs/common';
import type { IncomingMessage } from 'node:http';
import { digestOf, type Settings, settings } from './settings.js';

export const apiKeyHeader = 'x-api-key';

const tenants = new WeakMap<IncomingMessage, string>();

/** Admits requests with an API key. */
@Injectable()
export class ApiKeyGuard implements CanActivate {
  constructor(@Inject(settings.KEY) private readonly config: Settings) {}

  canActivate(context: ExecutionContext): boolean {
    const request = context.switchToHttp().getRequest<IncomingMessage>();
    const { [apiKeyHeader]: key = '' } = request.headers;
    const tenant = this.config.tenants.get(digestOf(String(key)));
    if (tenant === undefined) {
      throw new UnauthorizedException(`Send your API key in the header ${apiKeyHeader}`);
    }
    tenants.set(request, tenant);
    return true;
  }
}

/** The tenant that the API key of the request belongs to. */
export const Tenant = createParamDecorator((_: unknown, context: ExecutionContext) =>
  tenants.get(context.switchToHttp().getRequest<IncomingMessage>()),
);

import {
  type CanActivate,
  type ExecutionContext,
  Inject,
  Injectable,
  UnauthorizedException,
} from '@nestjs/common';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { digestOf, type Settings, settings } from './settings.js';

/** Admits browsers that sign in with an API key of the tenant `operator` as password. */
@Injectable()
export class BoardGuard implements CanActivate {
  constructor(@Inject(settings.KEY) private readonly config: Settings) {}

  canActivate(context: ExecutionContext): boolean {
    const http = context.switchToHttp();
    const { headers } = http.getRequest<IncomingMessage>();
    const [, encoded = ''] = headers.authorization?.split('Basic ') ?? [];
    const login = Buffer.from(encoded, 'base64').toString();
    const password = login.slice(login.indexOf(':') + 1);
    if (this.config.tenants.get(digestOf(password)) !== 'operator') {
      // The browser asks for a name and a password.
      http.getResponse<ServerResponse>().setHeader('WWW-Authenticate', 'Basic realm="Servings"');
      throw new UnauthorizedException('Sign in with an API key of the tenant "operator"');
    }
    return true;
  }
}

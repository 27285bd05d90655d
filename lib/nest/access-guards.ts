import { createHash, timingSafeEqual } from 'node:crypto';
import {
  type CanActivate,
  type ExecutionContext,
  ForbiddenException,
  Injectable,
  type OnModuleInit,
  type Type,
  UnauthorizedException,
} from '@nestjs/common';
import { InvalidServingError } from '../core/errors.js';
import type { ModuleRef } from '@nestjs/core';
import { isObservable, lastValueFrom } from 'rxjs';
import { isRecord, type Rule } from '../core/definition/option-rules.js';

type Secret = string | undefined;

/** The login that a {@link LoginGuard} admits. */
export interface LoginGuardOptions {
  /**
   * The name to sign in with.
   *
   * @default 'admin'
   */
  readonly user?: string;
  /** The password. An empty or missing one fails the boot. */
  readonly password: string | undefined;
}

/**
 * Admits HTTP requests and gRPC calls with a key in the header (or metadata) `x-api-key`, or as
 * `authorization: Bearer KEY`. Answers others with 401 (`UNAUTHENTICATED`).
 *
 * Several keys let a new one come before the old one goes. Comparison takes constant time.
 *
 * @throws InvalidServingError at construction, for a missing, empty or impossible key
 */
@Injectable()
export class ApiKeyGuard implements CanActivate {
  private readonly digests: readonly Buffer[];

  constructor(keys: Secret | readonly Secret[]) {
    const list: readonly unknown[] = Array.isArray(keys) ? keys : [keys];
    if (list.length === 0) {
      throw new InvalidServingError('ApiKeyGuard has no keys, and would refuse every call');
    }
    this.digests = list.map((key) => digestOf(checked('ApiKeyGuard', 'a key', key)));
  }

  canActivate(context: ExecutionContext): true {
    const header = headersOf(context);
    const key = header('x-api-key') ?? credentialsOf('Bearer', header('authorization'));
    if (!isOneOf(this.digests, key)) {
      throw new UnauthorizedException(
        key === undefined
          ? 'Send your key in the header x-api-key, or in authorization as: Bearer <key>'
          : 'The key is not valid',
      );
    }
    return true;
  }
}

/**
 * Admits browsers that sign in with a name and a password (HTTP Basic authentication,
 * https://www.rfc-editor.org/rfc/rfc7617). Use HTTPS: each request sends the password. Both are
 * compared in constant time.
 *
 * @throws InvalidServingError at construction, for an empty or missing password
 */
@Injectable()
export class LoginGuard implements CanActivate {
  private readonly digests: readonly Buffer[];

  constructor(options: LoginGuardOptions) {
    const { user = 'admin', password } = { ...options };
    if (user === '' || user.includes(':')) {
      throw new InvalidServingError(
        `LoginGuard: the user "${user}" is empty or has a colon, so that no browser can send it`,
      );
    }
    this.digests = [digestOf(`${user}:${checked('LoginGuard', 'the password', password)}`)];
  }

  canActivate(context: ExecutionContext): true {
    const encoded = credentialsOf('Basic', headersOf(context)('authorization'));
    const login = encoded === undefined ? undefined : Buffer.from(encoded, 'base64').toString();
    if (!isOneOf(this.digests, login)) {
      challenge(context);
      throw new UnauthorizedException('Sign in with your name and password');
    }
    return true;
  }
}

function checked(guard: string, what: string, secret: unknown): string {
  if (typeof secret !== 'string' || secret.trim() === '') {
    throw new InvalidServingError(
      `${guard}: ${what} is ${typeof secret === 'string' ? 'empty' : 'missing'}; is the environment variable ` +
        'or the configuration that holds it set, and read before the module is made?',
    );
  }
  // eslint-disable-next-line no-control-regex
  if (/[\x00-\x1f\x7f]/.test(secret) || secret !== secret.trim()) {
    throw new InvalidServingError(
      `${guard}: ${what} starts or ends with white space, perhaps from reading a file; trim it`,
    );
  }
  return secret;
}

type Header = (name: string) => string | undefined;

/** HTTP headers or gRPC metadata; other contexts have neither. */
function headersOf(context: ExecutionContext): Header {
  if (context.getType<string>() === 'rpc') {
    const metadata = context
      .switchToRpc()
      .getContext<{ get?(name: string): unknown } | undefined>();
    return (name) => {
      const values = typeof metadata?.get === 'function' ? metadata.get(name) : undefined;
      return Array.isArray(values) && values.length > 0 ? String(values[0]) : undefined;
    };
  }
  const request =
    context.getType<string>() === 'http'
      ? context.switchToHttp().getRequest<{ readonly headers: Record<string, unknown> }>()
      : undefined;
  return (name) => {
    const value = request?.headers[name];
    return typeof value === 'string' ? value : undefined;
  };
}

/** Scheme names have no case (RFC 9110, section 11.1). */
function credentialsOf(scheme: string, authorization: string | undefined): string | undefined {
  const [, given, credentials] = /^(\S+) +(.+)$/.exec(authorization ?? '') ?? [];
  return given?.toLowerCase() === scheme.toLowerCase() ? credentials : undefined;
}

/** This header makes browsers ask for a login. */
function challenge(context: ExecutionContext): void {
  if (context.getType<string>() === 'http') {
    const response = context.switchToHttp().getResponse<{
      setHeader?(name: string, value: string): unknown;
      header?(name: string, value: string): unknown;
    }>();
    const [name, value] = ['WWW-Authenticate', 'Basic realm="Servings", charset="UTF-8"'] as const;
    // Express has both, Fastify only the latter.
    if (response.header) {
      response.header(name, value);
    } else {
      response.setHeader?.(name, value);
    }
  }
}

function digestOf(secret: string): Buffer {
  return createHash('sha256').update(secret).digest();
}

/** Compares all digests: the duration must not depend on the match. */
function isOneOf(digests: readonly Buffer[], secret: string | undefined): boolean {
  const digest = digestOf(secret ?? '');
  const matches = digests.map((each) => timingSafeEqual(each, digest));
  return secret !== undefined && matches.includes(true);
}

type ModuleGuard = Type<CanActivate> | CanActivate;

export const guardList: Rule = {
  check: (value) => Array.isArray(value) && value.every(isGuard),
  allowed: 'a list of guards, as @UseGuards takes them',
};

/** Guards from a module's options, which no decorator can name. */
export abstract class ModuleGuards implements CanActivate, OnModuleInit {
  private readonly instances = new Map<ModuleGuard, Promise<CanActivate>>();

  /** The others run when a guard calls {@link pass}. */
  constructor(
    private readonly moduleRef: ModuleRef,
    private readonly guards: readonly ModuleGuard[],
    private readonly others: readonly ModuleGuard[] = [],
  ) {}

  /** @internal Guards that can't be made fail the boot. */
  async onModuleInit(): Promise<void> {
    await Promise.all([...this.guards, ...this.others].map((each) => this.instanceOf(each)));
  }

  canActivate(context: ExecutionContext): Promise<boolean> {
    return this.pass(this.guards, context);
  }

  /** @throws ForbiddenException if a guard refuses */
  async pass(guards: readonly ModuleGuard[], context: ExecutionContext): Promise<true> {
    for (const guard of guards) {
      const result = (await this.instanceOf(guard)).canActivate(context);
      if (!(await (isObservable(result) ? lastValueFrom(result) : result))) {
        throw new ForbiddenException('Forbidden resource');
      }
    }
    return true;
  }

  /** Prefers the application's own instance. */
  private instanceOf(guard: ModuleGuard): Promise<CanActivate> {
    const known = this.instances.get(guard) ?? this.create(guard);
    this.instances.set(guard, known);
    return known;
  }

  private async create(guard: ModuleGuard): Promise<CanActivate> {
    if (typeof guard !== 'function') {
      return guard;
    }
    try {
      return this.moduleRef.get(guard, { strict: false });
    } catch {
      return this.moduleRef.create(guard);
    }
  }
}

function isGuard(value: unknown): boolean {
  return typeof value === 'function' || (isRecord(value) && 'canActivate' in value);
}

import type { LoggerService } from '@nestjs/common';
import { truncate, formatValue } from '../../../internal.js';
import type { MemberChange } from './members.js';
import type { NodeInfo } from './node-info.js';
import type { Address } from '../transport.js';

export class MembershipLog {
  private readonly joined = new Set<Address>();

  constructor(
    private readonly self: Address,
    private readonly logger: Pick<LoggerService, 'log' | 'warn'>,
  ) {}

  /** `isKnown`: still a member, as after an outage. */
  log({ type, address, info }: MemberChange, isKnown: boolean): void {
    if (type === 'joined' && address !== this.self && !this.joined.has(address)) {
      this.joined.add(address);
      this.logger.log(`${nameOf(info)} has joined${servingsOf(info)}`);
    } else if (type === 'left' && !isKnown && this.joined.delete(address)) {
      if (info.state === 'draining') {
        this.logger.log(`${nameOf(info)} has left`);
      } else {
        this.logger.warn(
          `${nameOf(info)} is lost: it cannot be reached any more and was not shutting down`,
        );
      }
    }
  }
}

function nameOf({ role, id }: NodeInfo): string {
  return `${role === 'client' ? 'Client' : 'Node'} ${formatValue(id)}`;
}

function servingsOf({ role, servings }: NodeInfo): string {
  const names = servings.map(({ name }) => formatValue(name)).join(', ');
  return role === 'client' ? '' : ` and serves ${truncate(names) || 'nothing'}`;
}

/** In milliseconds. */
const PAUSE = 10_000;

/** Warnings about other nodes' messages tend to repeat. */
export class RateLimitedLogger {
  private loggedAt = -Infinity;
  private suppressed = 0;

  constructor(private readonly logger: Pick<LoggerService, 'warn'>) {}

  warn(message: string): void {
    const now = performance.now();
    if (now - this.loggedAt < PAUSE) {
      this.suppressed++;
      return;
    }
    this.logger.warn(
      this.suppressed === 0
        ? message
        : `${message} (and ${this.suppressed} more since the last warning)`,
    );
    this.loggedAt = now;
    this.suppressed = 0;
  }
}

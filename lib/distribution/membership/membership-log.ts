import type { LoggerService } from '@nestjs/common';
import { truncate, formatValue } from '../../format.js';
import type { MemberChange } from './members.js';
import type { NodeInfo } from './node-info.js';
import type { Address } from '../transport.js';

/** Says in the log who comes and goes. */
export class MembershipLog {
  private readonly there = new Set<Address>();

  constructor(
    private readonly own: Address,
    private readonly logger: Pick<LoggerService, 'log' | 'warn'>,
  ) {}

  /**
   * @param isKnown whether a node of this address is still known: who comes back from an outage has
   * never been away
   */
  note({ type, address, info }: MemberChange, isKnown: boolean): void {
    if (type === 'joined' && address !== this.own && !this.there.has(address)) {
      this.there.add(address);
      this.logger.log(`${nameOf(info)} has joined${offerOf(info)}`);
    } else if (type === 'left' && !isKnown && this.there.delete(address)) {
      if (info.state === 'draining') {
        this.logger.log(`${nameOf(info)} has left`);
      } else {
        this.logger.warn(
          `${nameOf(info)} is lost: it was not shutting down, and cannot be reached any more`,
        );
      }
    }
  }
}

function nameOf({ role, id }: NodeInfo): string {
  return `${role === 'client' ? 'Client' : 'Node'} ${formatValue(id)}`;
}

function offerOf({ role, servings }: NodeInfo): string {
  const names = servings.map(({ name }) => formatValue(name)).join(', ');
  return role === 'client' ? '' : ` and serves ${truncate(names) || 'nothing'}`;
}

/** Milliseconds between two lines. */
const PAUSE = 10_000;

/**
 * Says in the log what is wrong with that which comes; not each time, as who sends it does so again
 * and again.
 */
export class RateLimitedLogger {
  private toldAt = -Infinity;
  private untold = 0;

  constructor(private readonly logger: Pick<LoggerService, 'warn'>) {}

  warn(message: string): void {
    const now = performance.now();
    if (now - this.toldAt < PAUSE) {
      this.untold++;
      return;
    }
    this.logger.warn(
      this.untold === 0
        ? message
        : `${message} (and ${this.untold} more since the last line about that)`,
    );
    this.toldAt = now;
    this.untold = 0;
  }
}

import { Injectable } from '@nestjs/common';
import { type HealthIndicatorResult, HealthIndicatorService } from '@nestjs/terminus';
import { type ServingHealth, ServingService } from '../../index.js';

/** The health of the application's servings, for the health checks of `@nestjs/terminus`. */
@Injectable()
export class ServingHealthIndicator {
  constructor(
    private readonly indicators: HealthIndicatorService,
    private readonly servings: ServingService,
  ) {}

  /** Up while every serving answers calls: for a readiness probe. */
  isReady<const Key extends string>(key: Key): HealthIndicatorResult<Key> {
    return this.check(key, ({ isReady }) => isReady);
  }

  /** Up unless only a new process helps: for a liveness probe. */
  isLive<const Key extends string>(key: Key): HealthIndicatorResult<Key> {
    return this.check(key, ({ isLive }) => isLive);
  }

  private check<const Key extends string>(
    key: Key,
    isWell: (health: ServingHealth) => boolean,
  ): HealthIndicatorResult<Key> {
    const all = this.servings.health();
    const sick = all.filter((health) => !isWell(health));
    const servings = Object.fromEntries(all.map((health) => [health.serving, detailsOf(health)]));
    const indicator = this.indicators.check(key);
    return sick.length === 0
      ? indicator.up({ servings })
      : indicator.down({ message: sick.map(inWords).join('; '), servings });
  }
}

function inWords({ serving, reason }: ServingHealth): string {
  return `serving "${serving}": ${reason ?? 'it answers no calls'}`;
}

function detailsOf({ state, reason, queued, partitions }: ServingHealth): object {
  const up = partitions.filter((partition) => partition.state === 'up').length;
  const restarts = partitions.reduce((sum, partition) => sum + partition.restarts, 0);
  return {
    state,
    ...(reason !== undefined && { reason }),
    queued,
    partitions: { up, all: partitions.length, restarts },
  };
}

import 'reflect-metadata';
import { setTimeout } from 'node:timers/promises';
import type { INestApplicationContext } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { Transport } from '@nestjs/microservices';
import { defineServing, type ServingDefinition, ServingModule } from 'nestjs-serving';
import { type DistributionOptions, ServingClusterModule } from 'nestjs-serving/distribution';
import type { Way } from './way.js';

/** Gives its rows back, to all who call it in one turn at once. */
const echo = defineServing({
  name: 'echo',
  batchTimeout: 0,
  model: { useFactory: () => (rows: unknown) => rows },
});

/** Keeps its node busy for 10 ms a row. */
const busy = defineServing({
  name: 'busy',
  batchSize: 1,
  batchTimeout: 0,
  model: {
    useFactory: () => async (rows: unknown) => {
      await setTimeout(10);
      return rows;
    },
  },
});

export function startOwner(way: Way): Promise<INestApplicationContext> {
  return start(way, [echo, busy]);
}

/** A node without servings. */
export function startCaller(ways: readonly Way[]): Promise<INestApplicationContext> {
  const peers = ways.flatMap((way) => {
    if (way.transport !== Transport.TCP) {
      return [];
    }
    return 'path' in way.options ? way.options.path : `127.0.0.1:${way.options.port}`;
  });
  return start(peers.length > 0 ? { transport: Transport.TCP, peers } : ways[0]!);
}

function start(
  distribution: DistributionOptions,
  servings: readonly ServingDefinition[] = [],
): Promise<INestApplicationContext> {
  const imports = [ServingModule.forRoot({ servings }), ServingClusterModule.forRoot(distribution)];
  return NestFactory.createApplicationContext(
    { module: class {}, imports },
    { logger: ['error', 'warn'] },
  );
}

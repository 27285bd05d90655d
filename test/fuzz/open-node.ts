import type { INestApplicationContext } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { type ServingDefinition, ServingModule } from 'nestjs-serving';
import { type DistributionOptions, ServingClusterModule } from 'nestjs-serving/distribution';

/** Starts a node of a cluster. Its logs are hidden. */
export function openNode(
  distribution: DistributionOptions,
  servings: readonly ServingDefinition[] = [],
): Promise<INestApplicationContext> {
  const imports = [ServingModule.forRoot({ servings }), ServingClusterModule.forRoot(distribution)];
  return NestFactory.createApplicationContext({ module: class {}, imports }, { logger: false });
}

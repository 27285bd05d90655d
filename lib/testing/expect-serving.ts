import { DiscoveryService } from '@nestjs/core';
import { ServingRegistry } from '../serving-registry.js';
import type { TestingBuilder } from './testing-builder.js';

/** The names of the servings that must be there, by the builder of their application. */
const expected = new WeakMap<TestingBuilder, Set<string>>();

/** Lets the application start only if it has a serving of that name: to replace what is not there replaces nothing, and says nothing. */
export function expectServing(builder: TestingBuilder, name: string): void {
  const names = expected.get(builder) ?? new Set();
  expected.set(builder, names.add(name));
  builder.overrideProvider(ServingRegistry).useFactory({
    factory: (discovery: DiscoveryService) => new ExpectingRegistry(discovery, names),
    inject: [DiscoveryService],
  });
}

class ExpectingRegistry extends ServingRegistry {
  constructor(
    discovery: DiscoveryService,
    private readonly names: ReadonlySet<string>,
  ) {
    super(discovery);
  }

  override onModuleInit(): void {
    super.onModuleInit();
    this.names.forEach((name) => this.get(name));
  }
}

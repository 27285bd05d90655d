import 'reflect-metadata';
import { Injectable, type OnModuleInit, Scope } from '@nestjs/common';
import { ApplicationConfig, DiscoveryService } from '@nestjs/core';
import { requireOrigins } from './request-context.js';
import { hintOfCopies } from './copies.js';
import { InvalidServingError, UnknownServingError } from '../core/errors.js';
import { servingNameOf } from './serving.decorator.js';
import { type Serving, SERVING_ROUTER, type ServingRouter } from '../core/serving/serving.js';
import { formatValue } from '../core/format.js';

/**
 * Finds all servings' handles, whichever module registers or overrides them, and the router to
 * other nodes.
 */
@Injectable()
export class ServingRegistry implements OnModuleInit {
  private servings: ReadonlyMap<string, Serving> | undefined;
  private routers: readonly ServingRouter[] | undefined;

  constructor(
    private readonly discovery: DiscoveryService,
    private readonly application: ApplicationConfig,
  ) {}

  onModuleInit(): void {
    this.checkRoots();
    this.servings = this.discover(checkProvided);
    for (const serving of this.servings.values()) {
      requireOrigins(this.application, serving);
      if (serving.local) {
        serving.local.closesLast = true;
      }
    }
    this.routers = this.discoverRouters();
    if (this.routers.length > 1) {
      throw new InvalidServingError(
        'ServingClusterModule is imported more than once; an application is one node',
      );
    }
  }

  find(name: string): Serving | undefined {
    return this.all.get(name);
  }

  /** @throws UnknownServingError naming the known ones */
  get(name: string): Serving {
    const serving = this.find(name);
    if (!serving) {
      const known = [...this.all.keys()].toSorted().join(', ') || 'none';
      throw new UnknownServingError(
        `There is no serving ${formatValue(name)}; registered are: ${known}`,
      );
    }
    return serving;
  }

  /** Keyed by name; complete from `onModuleInit` on, when all providers exist. */
  get all(): ReadonlyMap<string, Serving> {
    return this.servings ?? this.discover();
  }

  /** Servings found at start; empty before. */
  get started(): readonly Serving[] {
    return [...(this.servings?.values() ?? [])];
  }

  /** Undefined outside a cluster. */
  get router(): ServingRouter | undefined {
    return (this.routers ?? this.discoverRouters())[0];
  }

  /** @throws InvalidServingError for a second `forRoot` */
  private checkRoots(): void {
    const providers = this.discovery.getProviders();
    const roots = providers.filter(({ token }) => token === ServingRegistry);
    if (roots.length > 1) {
      const [root] = roots;
      const modules = new Set(providers.map(({ host }) => host?.metatype));
      const importers = [...modules].filter((each) => imports(each, root?.host?.metatype));
      const where = importers.map((each) => each?.name).join(' and ') || 'modules';
      throw new InvalidServingError(
        `ServingModule.forRoot is imported ${roots.length} times, in ${where}; import it once, in ` +
          'the root module, and use ServingModule.forFeature({ servings: [...] }) in others' +
          hintOfCopies(),
      );
    }
  }

  private discoverRouters(): readonly ServingRouter[] {
    const wrappers = this.discovery.getProviders().filter(({ token }) => token === SERVING_ROUTER);
    return wrappers.map(({ instance }) => instance as ServingRouter);
  }

  private discover(
    check: (name: string, wrapper: InstanceWrapper) => void = () => {},
  ): ReadonlyMap<string, Serving> {
    const servings = new Map<string, Serving>();
    for (const wrapper of this.discovery.getProviders()) {
      const name = wrapper.isAlias ? undefined : servingNameOf(wrapper.token);
      if (name === undefined) {
        continue;
      }
      if (servings.has(name)) {
        throw new InvalidServingError(
          `Serving "${name}" is registered more than once, the second time in ` +
            `${wrapper.host?.name ?? 'a module'}; names are unique in an application. Two modules can ` +
            'inject one serving: register it in one of them',
        );
      }
      check(name, wrapper);
      servings.set(name, wrapper.instance as Serving);
    }
    return servings;
  }
}

/** @throws InvalidServingError if the provider has no serving at boot */
function checkProvided(name: string, wrapper: InstanceWrapper): void {
  const owner = `Serving ${formatValue(name)} of ${wrapper.host?.name ?? 'a module'}`;
  const scoped = scopedDependencyOf(wrapper);
  if (scoped !== undefined) {
    throw new InvalidServingError(
      `${owner} depends on ${scoped}, which is request-scoped: a serving exists once, and runs the ` +
        'calls of many requests. Let its class, or the factory of forRootAsync, depend on ' +
        'singletons only, and pass what belongs to a request in the input',
    );
  }
  const { instance } = wrapper as { readonly instance: unknown };
  if (typeof instance !== 'object' || instance === null) {
    throw new InvalidServingError(
      `${owner} is provided as ${formatValue(instance)}, which is no serving; its factory must return ` +
        'what createServing() makes',
    );
  }
}

/** Name of the dependency that makes a provider request-scoped. */
function scopedDependencyOf(
  wrapper: InstanceWrapper,
  seen = new Set<InstanceWrapper>(),
): string | undefined {
  if (seen.has(wrapper) || wrapper.isDependencyTreeStatic()) {
    return undefined;
  }
  seen.add(wrapper);
  if (wrapper.scope === Scope.REQUEST) {
    return String(wrapper.name);
  }
  const dependencies = [
    ...(wrapper.getCtorMetadata() ?? []),
    ...(wrapper.getPropertiesMetadata() ?? []).map((property) => property.wrapper),
  ];
  for (const dependency of dependencies) {
    const found = dependency && scopedDependencyOf(dependency, seen);
    if (found !== undefined) {
      return found;
    }
  }
  return String(wrapper.name);
}

type InstanceWrapper = ReturnType<DiscoveryService['getProviders']>[number];

const IMPORTS = 'imports';

function imports(importer: Function | undefined, type: Function | undefined): boolean {
  const imported = importer
    ? (Reflect.getMetadata(IMPORTS, importer) as readonly unknown[] | undefined)
    : undefined;
  return (imported ?? []).some(
    (each) => typeof each === 'object' && each !== null && 'module' in each && each.module === type,
  );
}

import {
  ConfigurableModuleBuilder,
  type DynamicModule,
  type ModuleMetadata,
  type Type,
} from '@nestjs/common';
import type { ModulesContainer } from '@nestjs/core';
import {
  checkAsyncOptions,
  checkObject,
  flag,
  type Rule,
  type Rules,
} from '../core/definition/option-rules.js';
import { InvalidServingError } from '../core/errors.js';
import type { ServingDefinition } from '../core/definition/serving-definition.js';

/** Options of `ServingModule.forRoot` and `ServingModule.forFeature`. */
export interface ServingModuleOptions {
  /** The servings that the module registers, each as an injectable provider. */
  readonly servings?: readonly ServingDefinition[];
  /**
   * Whether each call gets its request's context, without further code: it
   * ends when the HTTP client leaves, and has the origin of the request. For this, every route of
   * the application gets an interceptor and an async context, also routes that call no serving,
   * which costs them a fifth of their requests per second. `@Batched()` endpoints end with their
   * client without it; other handlers do with `@RequestSignal()`. `queue.separateOrigins` needs it.
   *
   * @default false
   */
  readonly requestContext?: boolean;
  /**
   * Whether calls over HTTP that are refused, late or cancelled are logged: as a warning without a
   * stack, at most one a second for each code. Metrics and events count each of them.
   *
   * @default true
   */
  readonly logRefusals?: boolean;
}

/** Options that say how the module stands among others. */
export interface ServingModuleExtras {
  /**
   * Whether servings can be injected in every module without importing this one.
   *
   * @default true
   */
  readonly isGlobal?: boolean;
  /** Modules that export what the classes of class servings depend on. */
  readonly imports?: ModuleMetadata['imports'];
  /**
   * Names of the servings of the factory of `forRootAsync`. What can be
   * injected must be known before the factory runs.
   */
  readonly names?: readonly string[];
}

const ofRoot: Rules = {
  servings: { check: Array.isArray, allowed: 'a list of definitions' },
  requestContext: flag,
  logRefusals: flag,
  imports: { check: Array.isArray, allowed: 'a list of modules' },
  isGlobal: flag,
  names: { check: () => false, allowed: 'nothing here: only forRootAsync needs names' },
};

const ofFactory: Rules = { servings: ofRoot['servings']!, requestContext: flag, logRefusals: flag };

const ofRootAsync: Rules = {
  names: { check: Array.isArray, allowed: 'a list of the names that the factory defines' },
  isGlobal: flag,
  servings: {
    check: () => false,
    allowed: 'nothing here: the factory returns them, and "names" lists their names',
  },
};

const ofFeature: Rules = { servings: ofRoot['servings']!, imports: ofRoot['imports']! };

export const moduleRules = {
  forRoot: ofRoot,
  forRootAsync: ofRootAsync,
  forFeature: ofFeature,
  factory: ofFactory,
};

export const DEFAULT_EXTRAS = { isGlobal: true, imports: [], names: [] };

export function withExtras(
  module: DynamicModule,
  { isGlobal = true, imports = [] }: Pick<ServingModuleExtras, 'isGlobal' | 'imports'>,
): DynamicModule {
  return { ...module, global: isGlobal, imports: [...(module.imports ?? []), ...imports] };
}

export const {
  ConfigurableModuleClass,
  MODULE_OPTIONS_TOKEN: SERVING_MODULE_OPTIONS,
  OPTIONS_TYPE,
  ASYNC_OPTIONS_TYPE,
} = new ConfigurableModuleBuilder<ServingModuleOptions>({ moduleName: 'Serving' })
  .setClassMethodName('forRoot')
  .setExtras<ServingModuleExtras>(DEFAULT_EXTRAS, withExtras)
  .build();

/** The module checks its value. */
const ANY: Rule = { check: () => true, allowed: 'any' };

interface ConfigurableModule {
  readonly forRoot: (this: unknown, options: never) => DynamicModule;
  readonly forRootAsync: (this: unknown, options: never) => DynamicModule;
}

/**
 * Lets a class of Nest's builder refuse what Nest would ignore.
 *
 * @param own names of options next to the factory of `forRootAsync`
 */
export function checkedModule<Base extends ConfigurableModule>(
  base: Base,
  owner: string,
  rules: Rules,
  own: readonly string[] = [],
): Base {
  const { forRoot, forRootAsync } = base;
  const others = Object.fromEntries(own.map((name) => [name, ANY]));
  return Object.assign(base, {
    forRoot(this: unknown, options: unknown) {
      checkObject(`${owner}.forRoot`, options, { ...rules, ...others });
      return forRoot.call(this, options as never);
    },
    forRootAsync(this: unknown, options: object) {
      checkAsyncOptions(`${owner}.forRootAsync`, options, others);
      return forRootAsync.call(this, options as never);
    },
  });
}

/**
 * Refuses a second import, whose routes those of the first would hide, with other guards.
 *
 * @param path injection token of the module's path; imports with different paths are allowed
 */
export function refuseSecond(
  modules: ModulesContainer,
  module: Type,
  owner: string,
  path?: symbol,
): void {
  const imported = [...modules.values()].filter(({ metatype }) => metatype === module);
  // Express ignores case.
  const paths = imported.map(({ providers }) =>
    path ? `twice with the path "${String(providers.get(path)?.instance).toLowerCase()}"` : 'twice',
  );
  const second = paths.find((each, i) => paths.indexOf(each) < i);
  if (second !== undefined) {
    const remedy = path ? 'give each a path of its own' : 'import it once, in the root module';
    throw new InvalidServingError(`${owner} is imported ${second}; ${remedy}`);
  }
}

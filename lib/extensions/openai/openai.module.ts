import { ConfigurableModuleBuilder, Inject, Module } from '@nestjs/common';
import { ApplicationConfig, HttpAdapterHost, ModulesContainer } from '@nestjs/core';
import { InvalidServingError } from '../../index.js';
import { checkedModule, refuseSecond } from '../../doors/options.js';
import { formatValue } from '../../doors/text.js';
import { leaveBodiesUnparsed } from './http.js';
import { OfferedModels, OPENAI_OPTIONS, type OpenAIOptions, OWNER, rules } from './models.js';
import {
  openAIController,
  OpenAIExceptionFilter,
  OpenAIGuards,
  PlainExceptionFilter,
  Replies,
  UnknownPathFilter,
} from './openai.controller.js';

const OPENAI_PATH = Symbol('OpenAI path');

const { ConfigurableModuleClass } = new ConfigurableModuleBuilder<OpenAIOptions>({
  moduleName: 'OpenAI',
  optionsInjectionToken: OPENAI_OPTIONS,
})
  .setClassMethodName('forRoot')
  .setExtras({ path: '' }, (definition, extras) => {
    const path = resolvePath(extras.path);
    return {
      ...definition,
      controllers: [openAIController(path)],
      providers: [...(definition.providers ?? []), { provide: OPENAI_PATH, useValue: path }],
    };
  })
  .build();

/**
 * Answers clients of OpenAI's API, and of Cohere's for reranking, with the servings of tasks.
 * Import it next to `ServingModule`, once for each path. Its routes are `/v1/...` and `/v2/rerank`;
 * with `path: 'openai'`, next to the other options, `/openai/v1/...`.
 */
@Module({
  providers: [OfferedModels, OpenAIGuards, OpenAIExceptionFilter, PlainExceptionFilter, Replies],
})
export class OpenAIModule extends checkedModule(ConfigurableModuleClass, OWNER, rules, ['path']) {
  constructor(
    host: HttpAdapterHost,
    application: ApplicationConfig,
    replies: Replies,
    @Inject(OPENAI_PATH) path: string,
    modules: ModulesContainer,
  ) {
    super();
    refuseSecond(modules, OpenAIModule, OWNER, OPENAI_PATH);
    // The application may leave its global prefix out.
    const bases = (): readonly string[] =>
      ['', application.getGlobalPrefix()].map((prefix) =>
        [prefix, path]
          .flatMap((part) => part.split('/').filter(Boolean))
          .map((part) => `/${part.toLowerCase()}`)
          .join(''),
      );
    application.addGlobalFilter(
      new UnknownPathFilter(replies, host, (url) =>
        bases().some((base) => url.startsWith(`${base}/v1/`)),
      ),
    );
    const bodies = (): ReadonlySet<string> =>
      new Set(bases().flatMap((base) => CALLS.map((call) => `${base}/${call}`)));
    // Before the application initialises its body parsers.
    if (host.httpAdapter) {
      leaveBodiesUnparsed(host.httpAdapter, bodies);
    } else if ('init$' in host) {
      // A testing module gets its adapter later, an application context never.
      host.init$.subscribe(() => host.httpAdapter && leaveBodiesUnparsed(host.httpAdapter, bodies));
    }
  }
}

const CALLS = [
  'v1/embeddings',
  'v1/rerank',
  'v2/rerank',
  'v2/embed',
  'tei',
  'tei/embed',
  'tei/rerank',
  'tei/predict',
  'vllm/classify',
  'ollama/api/embed',
  'v1/chat/completions',
  'v1/completions',
  'v1/responses',
  'v1/audio/transcriptions',
  'v1/audio/translations',
];

/** Removes the leading slash. */
function resolvePath(path: unknown): string {
  if (typeof path !== 'string' || !/^(\/?[\w.~-]+(\/[\w.~-]+)*)?$/.test(path)) {
    throw new InvalidServingError(
      `OpenAIModule: option "path" is ${formatValue(path)}; allowed are names of letters, digits and ` +
        "-._~ with slashes between them, such as 'openai'",
    );
  }
  return path.replace(/^\//, '');
}

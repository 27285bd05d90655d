import type { Type } from '@nestjs/common';
import type { ServingDefinition } from 'nestjs-serving';
import { readFile } from 'node:fs/promises';
import type { LoadRequest } from './load.js';

/** An application and the requests of its callers. */
export interface Sample {
  readonly title: string;
  readonly module: Type;
  readonly definition: ServingDefinition;
  readonly requests: readonly LoadRequest[];
  /** The effect of batching in this application. */
  readonly remark: string;
}

const samples = new URL('../../', import.meta.url);
const load = <T>(path: string) => import(new URL(path, samples).href) as Promise<T>;

/**
 * Needs a model that is not in the repository: fails where it is not cached and cannot be fetched.
 */
export async function semanticSearch(): Promise<Sample> {
  const folder = '02-semantic-search';
  const { AppModule } = await load<{ AppModule: Type }>(`${folder}/dist/app.module.js`);
  const { fetchModel } = await load<{ fetchModel: () => Promise<string> }>(
    `${folder}/dist/fetch-model.js`,
  );
  const { createEmbedder } = await load<{
    createEmbedder: (modelFolder: string) => ServingDefinition;
  }>(`${folder}/dist/embedder.js`);
  const faq = JSON.parse(await readFile(new URL(`${folder}/faq.json`, samples), 'utf8')) as Record<
    string,
    object
  >;
  const questions = Object.values(faq).flatMap(Object.keys);

  return {
    title: 'Semantic search with all-MiniLM-L6-v2 in int8',
    module: AppModule,
    definition: createEmbedder(await fetchModel()),
    requests: questions.map((question) => ({ path: `/search?q=${encodeURIComponent(question)}` })),
    remark:
      'Batching alone makes this model 1.0 to 1.4 times as fast on one CPU thread. The rest of the gain is that\n' +
      'the model no longer blocks the event loop, which stays free for other requests.',
  };
}

/** Needs nothing but the repository. */
export async function handwrittenDigits(): Promise<Sample> {
  const folder = '01-digits';
  const { AppModule } = await load<{ AppModule: Type }>(`${folder}/dist/app.module.js`);
  const { digits } = await load<{ digits: ServingDefinition }>(`${folder}/dist/digits.serving.js`);
  const { toDrawing } = await load<{ toDrawing: (ink: Float32Array) => string[] }>(
    `${folder}/dist/drawing.js`,
  );
  const noise = () => toDrawing(Float32Array.from({ length: 28 * 28 }, Math.random));

  return {
    title: 'Handwritten digits with a small network',
    module: AppModule,
    definition: digits,
    requests: Array.from({ length: 20 }, () => ({
      path: '/classify',
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ image: noise() }),
    })),
    remark:
      'This network takes less time than the HTTP request around it, so batching changes little here.\n' +
      'It gains where the model is the slow part.',
  };
}

// Definitions in a file of their own, one of each kind of runner: their inferred types must have names in a declaration file.
import {
  type BatchContext,
  defineServing,
  DONE,
  last,
  type SequenceModel,
  type ServingHandler,
  type ServingService,
  Tensor,
  withMetadata,
} from 'nestjs-serving';
import { endpoint } from 'nestjs-serving/inference-protocol';

export const model = defineServing({ name: 'model', model: 'digits.onnx' });

export const modelWithOptions = defineServing({
  name: 'model with options',
  model: { file: 'digits.onnx', inputs: { image: { batchAxis: 0 } }, isolation: 'process' },
  rollout: { versions: { '2': { model: 'v2.onnx', canary: 0.1 } } },
});

export const prepared = defineServing({
  name: 'prepared',
  model: 'digits.onnx',
  preprocess: (text: string) => ({
    batch: new Tensor('float32', [text.length], [1, 1]),
    info: text,
  }),
  postprocess: ({ y }: { y: Tensor }, { info }) => ({ text: info, size: y.dims.length }),
});

export const lengths = defineServing({
  name: 'lengths',
  model: { useFactory: () => (texts: string[]) => texts.map((text) => text.length) },
});

export const doubled = defineServing({
  name: 'doubled',
  model: {
    useFactory: () => (rows: Tensor) =>
      new Tensor('float32', Float32Array.from(rows.data as Float32Array), rows.dims),
  },
});

export const measured = defineServing({
  name: 'measured',
  model: {
    useFactory: () => (texts: string[], batch: BatchContext) =>
      withMetadata(
        texts.map((text) => text.length),
        { key: batch.key },
      ),
  },
  deduplication: { singleFlight: true },
  batchSize: { cost: { of: () => 1, most: 100 } },
});

export const generator = defineServing({
  name: 'generator',
  model: {
    useFactory: () =>
      function* (texts: string[]) {
        yield texts.map((text) => text.length);
      },
  },
});

export const counter = defineServing({
  name: 'counter',
  model: {
    useFactory: (): SequenceModel<string, number, { next: number }> => ({
      start: (texts) => texts.map(() => ({ next: 0 })),
      step: (states) => states.map((state) => (state.next < 3 ? state.next++ : DONE)),
    }),
    sequence: { joins: { rows: 2 } },
  },
});

/** The calls of these are typed, and their types have names, too. */
export const calls = (servings: ServingService) => ({
  values: servings.batchedRun(counter, 'a'),
  events: servings.stream(counter, 'a'),
  steps: servings.stream(generator, 'a'),
});

/** Functions that a definition shares: so have the types of what they return. */
export const measure = (texts: string[]) => withMetadata(texts.map(String), 'measured');

export const finish = (texts: readonly string[]) => texts.map((text) => last(text.length));

export const countOf = async (servings: ServingService): Promise<number> => {
  let count = 0;
  for await (const { output } of servings.stream(counter, 'a')) {
    count += output;
  }
  return count + (await calls(servings).values).length;
};

export const file = defineServing({
  name: 'file',
  model: { useFile: '/primes.js', isolation: 'process' },
});

export class Translator implements ServingHandler {
  init(): void {}

  handleBatch(texts: unknown): { output: string[] } {
    return { output: (texts as string[]).map((text) => text.toUpperCase()) };
  }
}

export const translator = defineServing({ name: 'translator', model: { useClass: Translator } });

export const existing = defineServing({ name: 'existing', model: { useExisting: Translator } });

export const remote = defineServing({
  name: 'remote',
  model: endpoint(['grpc://triton-a:8001', { url: 'grpcs://triton-b:8001' }], 'resnet50'),
});

export const sessions = defineServing({
  name: 'sessions',
  model: { file: 'vad.onnx', state: { state: 'stateN' }, sessions: { idle: 1000 } },
});

import { expectTypeOf } from 'expect-type';
import {
  Batch,
  type BatchContext,
  createServing,
  defineServing,
  DONE,
  last,
  type LocalServing,
  type PostprocessContext,
  type SequenceModel,
  type Serving,
  type ServingDefinition,
  type ServingHandler,
  ServingModule,
  type ServingOf,
  type ServingService,
  type ServingSession,
  type ServingStream,
  type Steps,
  type StreamEvent,
  withMetadata,
} from 'nestjs-serving';
import { endpoint } from 'nestjs-serving/inference-protocol';
import type { BatchScript } from 'nestjs-serving/testing';
import { BatchScript as Script } from 'nestjs-serving/testing';
import { Tensor } from 'onnxruntime-common';
import type { Observable } from 'rxjs';

declare const servings: ServingService;

// A function gives input and output.
const lengths = defineServing({
  name: 'lengths',
  model: { useFactory: () => (texts: string[]) => texts.map((text) => text.length) },
});
expectTypeOf<ServingOf<typeof lengths>>().toEqualTypeOf<Serving<string, number>>();
expectTypeOf(servings.get(lengths)).toEqualTypeOf<Serving<string, number>>();
expectTypeOf(servings.batchedRun(lengths, 'a')).toEqualTypeOf<Promise<number>>();
expectTypeOf(servings.run({ local: lengths }, 'a')).toEqualTypeOf<Promise<number>>();
expectTypeOf(servings.get({ distributed: lengths })).toEqualTypeOf<Serving<string, number>>();
expectTypeOf(servings.get(lengths).open().run('a')).toEqualTypeOf<Promise<number>>();
expectTypeOf(servings.open(lengths)).toEqualTypeOf<ServingSession<string, number>>();
expectTypeOf(Script.of(lengths)).toEqualTypeOf<BatchScript<string, number>>();

// Names give no types, unless the caller does.
expectTypeOf(servings.get('lengths')).toEqualTypeOf<Serving>();
expectTypeOf(servings.batchedRun<string, number>('lengths', 'a')).toEqualTypeOf<Promise<number>>();

// Promises, errors of rows and metadata are no part of the output.
const careful = defineServing({
  name: 'careful',
  model: {
    useFactory:
      async ({ partition }) =>
      async (texts: readonly string[], { key }) =>
        withMetadata(
          texts.map(async (text) => (text === '' ? new RangeError(key) : text.length)),
          { partition },
        ),
  },
});
expectTypeOf<ServingOf<typeof careful>>().toEqualTypeOf<Serving<string, number>>();

// Tensors come and go as they are, and a list for rows of tensors stays a list.
const scaled = defineServing({
  name: 'scaled',
  model: { useFactory: () => (rows: Tensor) => rows },
});
expectTypeOf<ServingOf<typeof scaled>>().toEqualTypeOf<Serving<Tensor, Tensor>>();
const labels = defineServing({
  name: 'labels',
  model: { useFactory: () => (rows: { image: Tensor }) => Array.from(rows.image.dims, String) },
});
const named = defineServing({
  name: 'named',
  model: { useFactory: () => (rows: { readonly input: Tensor }) => ({ output: rows.input }) },
});
expectTypeOf<ServingOf<typeof named>>().toEqualTypeOf<
  Serving<{ readonly input: Tensor }, { output: Tensor }>
>();
expectTypeOf<ServingOf<typeof labels>>().toEqualTypeOf<Serving<{ image: Tensor }, string[]>>();

// preprocess gives the input, and decides whether a call has one result or a list of them.
const words = {
  name: 'words',
  model: { useFactory: () => (texts: string[]) => texts.map((text) => text.length) },
};
const one = defineServing({ ...words, preprocess: (id: number) => ({ batch: String(id) }) });
expectTypeOf<ServingOf<typeof one>>().toEqualTypeOf<Serving<number, number>>();
const many = defineServing({ ...words, preprocess: (rows: Batch) => ({ batch: rows }) });
expectTypeOf<ServingOf<typeof many>>().toEqualTypeOf<Serving<Batch, number[]>>();
const lazy = defineServing({
  ...words,
  preprocess: async (rows: Observable<string>) => ({ batch: rows }),
});
expectTypeOf<ServingOf<typeof lazy>>().toEqualTypeOf<Serving<Observable<string>, number[]>>();
const unclear = defineServing({ ...words, preprocess: (rows: object) => ({ batch: rows }) });
expectTypeOf<ServingOf<typeof unclear>>().toEqualTypeOf<Serving<object>>();
const either = defineServing({
  ...words,
  preprocess: (rows: string | Batch) => ({ batch: rows }),
});
expectTypeOf<ServingOf<typeof either>>().toEqualTypeOf<
  Serving<string | Batch, number | number[]>
>();

// postprocess gets the result of the runner and the info of preprocess, and gives the output.
const marked = defineServing({
  name: 'marked',
  preprocess: (id: number) => ({ batch: String(id), info: { id } }),
  model: {
    useFactory: () => (texts: string[], context) => {
      expectTypeOf(context).toEqualTypeOf<BatchContext>();
      return texts.map((text) => text.length);
    },
  },
  postprocess(length, { info, ...rest }) {
    expectTypeOf(length).toEqualTypeOf<number>();
    expectTypeOf(info).toEqualTypeOf<{ id: number }>();
    expectTypeOf(rest).not.toBeAny();
    return { length, ...info };
  },
});
expectTypeOf<ServingOf<typeof marked>>().toEqualTypeOf<
  Serving<number, { length: number; id: number }>
>();
const opaque = defineServing({ ...words, postprocess: (length: number): unknown => length });
expectTypeOf<ServingOf<typeof opaque>>().toEqualTypeOf<Serving<string>>();

// Other callbacks give the input too.
const shared = defineServing({
  name: 'shared',
  deduplication: { singleFlight: true, key: ({ text }: { text: string }) => text },
  preprocess: ({ text }) => ({ batch: text }),
  model: { useFactory: () => (texts: string[]) => texts.map((text) => ({ mood: text })) },
});
expectTypeOf<ServingOf<typeof shared>>().toEqualTypeOf<
  Serving<{ text: string }, { mood: string }>
>();

// A sequence gives the values of each step: a call has the list of them, a stream one at a time.
const counter = defineServing({
  name: 'counter',
  model: {
    useFactory: (): SequenceModel<string, number, { readonly text: string; next: number }> => ({
      start: (texts) => texts.map((text) => ({ text, next: 0 })),
      step: (states) => states.map((state) => (state.next < 3 ? state.next++ : DONE)),
      cost: (text, values) => text.length + values,
    }),
    sequence: { joins: { rows: 2 } },
  },
});
expectTypeOf<ServingOf<typeof counter>>().toEqualTypeOf<Serving<string, Steps<number>>>();
expectTypeOf<Awaited<ReturnType<ServingOf<typeof counter>['batchedRun']>>>().toExtend<number[]>();
expectTypeOf(servings.run(counter, 'a')).toEqualTypeOf<Promise<Steps<number>>>();
expectTypeOf(servings.stream(counter, 'a')).toEqualTypeOf<ServingStream<StreamEvent<number>>>();
expectTypeOf(servings.get(counter).stream('a', { hooks: ['logits'] })).toEqualTypeOf<
  ServingStream<StreamEvent<number, 'logits'>>
>();
expectTypeOf(servings.open(counter)).toEqualTypeOf<ServingSession<string, Steps<number>>>();
expectTypeOf(createServing(counter)).toEqualTypeOf<LocalServing<string, Steps<number>>>();
expectTypeOf(Script.of(counter)).toEqualTypeOf<BatchScript<string, Steps<number>>>();

// A handle fits where any is taken, and the list of values where a list is.
expectTypeOf<Serving<string, Steps<number>>>().toExtend<Serving>();
expectTypeOf<Serving<string, number>>().toExtend<Serving>();
expectTypeOf<Steps<number>>().toExtend<number[]>();
expectTypeOf<number[]>().toExtend<Steps<number>>();

// Promises, errors and ends of rows are no part of the values.
const ended = defineServing({
  name: 'ended',
  model: {
    useFactory: async () => ({
      start: (texts: readonly string[]) => texts,
      step: async (texts: readonly string[]) =>
        texts.map((text) => (text === '' ? DONE : last(Promise.resolve({ value: text.length })))),
    }),
    sequence: {},
  },
});
expectTypeOf<ServingOf<typeof ended>>().toEqualTypeOf<Serving<string, Steps<{ value: number }>>>();

// Several rows have a list for each; a stream has the values of a step, without those that ended.
const several = defineServing({
  name: 'several',
  preprocess: (texts: string[]) => ({ batch: Batch.stack(texts) }),
  model: {
    useFactory: () => ({
      start: (texts: readonly string[]) => texts,
      step: (texts: readonly string[]) => texts.map((text) => last(text.length)),
    }),
    sequence: {},
  },
});
expectTypeOf<ServingOf<typeof several>>().toEqualTypeOf<Serving<string[], Steps<number>[]>>();
expectTypeOf(servings.stream(several, ['a'])).toEqualTypeOf<
  ServingStream<StreamEvent<(number | undefined)[]>>
>();

// A sequence gets tensors with one row for each.
const tokens = defineServing({
  name: 'tokens',
  preprocess: (text: string) => ({ batch: { ids: new Tensor('int32', [text.length], [1, 1]) } }),
  model: {
    useFactory: () => ({
      start: (prompts: readonly { readonly ids: Tensor }[]) => prompts,
      step: (prompts: readonly { readonly ids: Tensor }[]) => prompts.map(() => last(1)),
    }),
    sequence: {},
  },
});
expectTypeOf<ServingOf<typeof tokens>>().toEqualTypeOf<Serving<string, Steps<number>[]>>();

// postprocess gets all values or, in a stream, each; what it returns is the output of both.
const shaped = defineServing({
  name: 'shaped',
  model: {
    useFactory: (): SequenceModel<string, number, string> => ({
      start: (texts) => texts,
      step: (texts) => texts.map((text) => last(text.length)),
    }),
    sequence: {},
  },
  postprocess(values) {
    expectTypeOf(values).toEqualTypeOf<number | Steps<number>>();
    return String(values);
  },
});
expectTypeOf<ServingOf<typeof shaped>>().toEqualTypeOf<Serving<string, string>>();
expectTypeOf(servings.stream(shaped, 'a')).toEqualTypeOf<ServingStream<StreamEvent<string>>>();

// postprocessStream gets the events of a stream, and a postprocess for other nodes both outputs.
const joined = defineServing({
  name: 'joined',
  model: {
    useFactory: (): SequenceModel<string, number, string> => ({
      start: (texts) => texts,
      step: (texts) => texts.map((text) => last(text.length)),
    }),
    sequence: {},
  },
  async *postprocessStream(events) {
    for await (const event of events) {
      expectTypeOf(event).toEqualTypeOf<StreamEvent<number, string>>();
      yield event;
    }
  },
  distribution: {
    postprocess: (output) => {
      expectTypeOf(output).toEqualTypeOf<number | Steps<number>>();
      return output;
    },
  },
});
expectTypeOf<ServingOf<typeof joined>>().toEqualTypeOf<Serving<string, Steps<number>>>();

// A generator gives the values of its steps, too.
const steps = defineServing({
  name: 'steps',
  model: {
    useFactory: () =>
      function* (texts: string[]) {
        yield texts.map(() => DONE);
        yield withMetadata(
          texts.map((text) => (text === '' ? new RangeError() : text.length)),
          'all',
        );
      },
  },
});
expectTypeOf<ServingOf<typeof steps>>().toEqualTypeOf<Serving<string, Steps<number>>>();
const written = defineServing({
  name: 'written',
  model: {
    useFactory: async () =>
      async function* (prompts: string[]) {
        const split = prompts.map((prompt) => prompt.split(' '));
        for (let step = 0; step < 4; step++) {
          yield split.map((own) => own[step] ?? DONE);
        }
      },
  },
});
expectTypeOf<ServingOf<typeof written>>().toEqualTypeOf<Serving<string, Steps<string>>>();
expectTypeOf(servings.stream(written, 'a')).toEqualTypeOf<ServingStream<StreamEvent<string>>>();
const slices = defineServing({
  name: 'slices',
  model: {
    useFactory: () =>
      function* (rows: Tensor): Generator<Tensor[], void> {
        yield [rows];
      },
  },
});
expectTypeOf<ServingOf<typeof slices>>().toEqualTypeOf<Serving<Tensor, Steps<Tensor>[]>>();

// A list of tensors is one container, or one tensor per row: the values decide.
const stacked = defineServing({
  name: 'stacked',
  model: { useFactory: () => (rows: Tensor[]) => rows },
});
expectTypeOf<ServingOf<typeof stacked>>().toEqualTypeOf<Serving>();

// The outputs of a model are known only at run time.
const model = defineServing({
  name: 'model',
  model: 'model.onnx',
  preprocess: (ink: Float32Array) => ({ batch: { x: new Tensor(ink, [1, 4]) }, info: 'ink' }),
  postprocess({ y }: { y: Tensor }, context) {
    expectTypeOf(context).toEqualTypeOf<PostprocessContext<string>>();
    return y.dims;
  },
});
expectTypeOf<ServingOf<typeof model>>().toEqualTypeOf<Serving<Float32Array, readonly number[]>>();
const bare = defineServing({ name: 'bare', model: { file: 'model.onnx' } });
expectTypeOf<ServingOf<typeof bare>>().toEqualTypeOf<Serving>();

// A class gives the output of its handleBatch, and takes any batch.
class Upper implements ServingHandler {
  init(): void {}

  handleBatch(batch: Batch): { output: string[] } {
    return { output: (batch.consume() as string[]).map((text) => text.toUpperCase()) };
  }
}
const upper = defineServing({
  name: 'upper',
  model: { useClass: Upper },
  preprocess: (text: string) => ({ batch: text }),
});
expectTypeOf<ServingOf<typeof upper>>().toEqualTypeOf<Serving<string, string>>();

class Letters implements ServingHandler {
  init(): void {}

  async *handleBatch(batch: Batch): AsyncGenerator<string[], void> {
    yield batch.consume() as string[];
  }
}
const letters = defineServing({
  name: 'letters',
  model: { useClass: Letters },
  preprocess: (text: string) => ({ batch: text }),
});
expectTypeOf<ServingOf<typeof letters>>().toEqualTypeOf<Serving<string, Steps<string>>>();

// A class that is a sequence model gives its input and its values.
class Countdown implements SequenceModel<number, string, { left: number }> {
  start(inputs: readonly number[]): { left: number }[] {
    return inputs.map((left) => ({ left }));
  }

  step(states: readonly { left: number }[]): (string | typeof DONE)[] {
    return states.map((state) => (state.left > 0 ? String(state.left--) : DONE));
  }
}
const countdown = defineServing({
  name: 'countdown',
  model: { useClass: Countdown, sequence: {} },
});
expectTypeOf<ServingOf<typeof countdown>>().toEqualTypeOf<Serving<number, Steps<string>>>();

// An endpoint runs a model elsewhere.
const remote = defineServing({
  name: 'remote',
  model: endpoint(['grpc://a:8001', { url: 'grpcs://b:8001', concurrency: 4 }], {
    name: 'resnet50',
    outputs: { scores: { batchAxis: 0 } },
  }),
  rollout: { version: '2' },
  preprocess: (pixels: Float32Array) => ({ batch: { x: new Tensor('float32', pixels, [1, 4]) } }),
  postprocess: ({ scores }: { scores: Tensor }) => [...(scores.data as Float32Array)],
});
expectTypeOf<ServingOf<typeof remote>>().toEqualTypeOf<Serving<Float32Array, number[]>>();
expectTypeOf<ServingOf<typeof elsewhere>>().toEqualTypeOf<Serving>();
const elsewhere = defineServing({
  name: 'elsewhere',
  model: endpoint('grpc://a:8001', 'resnet50'),
});
ServingModule.forRoot({ servings: [remote, elsewhere] });

// A file says nothing, and an annotation gives it types.
const file = defineServing({
  name: 'file',
  model: { useFile: '/primes.js', isolation: 'process' },
});
expectTypeOf<ServingOf<typeof file>>().toEqualTypeOf<Serving>();
const primes: ServingDefinition<number, boolean> = {
  name: 'primes',
  model: { useFile: '/primes.js' },
};
expectTypeOf(servings.get(primes)).toEqualTypeOf<Serving<number, boolean>>();
const tale: ServingDefinition<string, Steps<string>> = {
  name: 'tale',
  model: { useFile: '/tale.js', sequence: {} },
};
expectTypeOf(servings.batchedRun(tale, 'a')).toEqualTypeOf<Promise<Steps<string>>>();
expectTypeOf(servings.stream(tale, 'a')).toEqualTypeOf<ServingStream<StreamEvent<string>>>();

// All of them are definitions, and a copy with another runner of the same kind is one too.
ServingModule.forRoot({ servings: [lengths, careful, marked, model, upper, file, primes] });
ServingModule.forRoot({ servings: [counter, ended, several, shaped, joined, steps, letters] });
ServingModule.forRoot({ servings: [tale, countdown] });
const small = defineServing({ ...model, name: 'small', model: 'small.onnx' });
expectTypeOf<ServingOf<typeof small>>().toEqualTypeOf<ServingOf<typeof model>>();

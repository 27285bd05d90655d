/**
 * Code that must not compile. The text after `@ts-expect-error` is the end of the compiler's
 * message, which test/unit/compiler-messages.spec.ts compares.
 */
import {
  Batched,
  type BatchContext,
  defineServing,
  ServingModule,
  type ServingService,
} from 'nestjs-serving';

declare const servings: ServingService;

const texts = (rows: string[]): number[] => rows.map((row) => row.length);

defineServing({
  name: 'two runners',
  // @ts-expect-error Mistake<"A serving has one runner, with its own options: remove the others">'.
  model: { file: 'model.onnx', useFactory: () => texts },
});

defineServing({
  name: 'two other runners',
  // @ts-expect-error Mistake<"A serving has one runner, with its own options: remove the others">'.
  model: { useFile: '/primes.js', useFactory: () => texts },
});

// @ts-expect-error Property 'model' is missing in type '{ name: string; }' but required in type '{ readonly model: Runner<AnyRun, unknown>; }'.
defineServing({ name: 'no runner' });

defineServing({
  name: 'a model file has no steps',
  // @ts-expect-error Mistake<"A serving has one runner, with its own options: remove the others">'.
  model: { file: 'model.onnx', sequence: {} },
});

defineServing({
  name: 'a function runs in the own thread',
  // @ts-expect-error Mistake<"A serving has one runner, with its own options: remove the others">'.
  model: { useFactory: () => texts, isolation: 'process' },
});

defineServing({
  name: 'a batch function in place of its factory',
  // @ts-expect-error NoFactory<"useFactory returns the batch function: write useFactory: () => (rows) => results">'.
  model: { useFactory: (rows: string[]) => rows.map((row) => row.length) },
});

defineServing({
  name: 'postprocess of another type',
  model: { useFactory: () => texts },
  // @ts-expect-error Type 'number' is not assignable to type 'string'.
  postprocess: (length: string) => length,
});

defineServing({
  name: 'postprocess of another type, with info',
  preprocess: (id: number) => ({ batch: String(id), info: id }),
  model: { useFactory: () => (rows: string[], _batch: BatchContext) => rows.map(Number) },
  // @ts-expect-error Type 'number' is not assignable to type '{ text: string; }'.
  postprocess: ({ text }: { text: string }, { info }) => text + info,
});

defineServing({
  name: 'a list of one',
  preprocess: (text: string) => ({ batch: text }),
  model: { useFactory: () => texts },
  // @ts-expect-error Type 'number' is not assignable to type 'number[]'.
  postprocess: (lengths: number[]) => lengths[0],
});

defineServing({
  name: 'an option that does not exist',
  model: { useFactory: () => texts },
  // @ts-expect-error Did you mean to write 'batchSize'?
  bachSize: 8,
});

defineServing({
  name: 'allowed sizes and a budget',
  model: { useFactory: () => texts },
  // @ts-expect-error Types of property 'rows' are incompatible. Type 'number[]' is not assignable to type 'number'.
  batchSize: { rows: [1, 4], cost: { of: (text: string) => text.length, most: 100 } },
});

// @ts-expect-error Did you mean to write 'servings'?
ServingModule.forRoot({ serving: [] });

const lengths = defineServing({ name: 'lengths', model: { useFactory: () => texts } });

// @ts-expect-error Argument of type 'number' is not assignable to parameter of type 'string'.
void servings.batchedRun(lengths, 5);

// @ts-expect-error Argument of type 'number' is not assignable to parameter of type 'string'.
void servings.get(lengths).batchedRun(5);

// @ts-expect-error Type 'number' is not assignable to type 'string'.
void (servings.get(lengths).batchedRun('a') satisfies Promise<string>);

class ScoreDto {
  readonly score!: number;
}

class TextDto {
  readonly text!: string;
}

export class Scorer {
  // @ts-expect-error Mistake<"@Batched(): each parameter of the method is a list, with an entry per caller">'.
  @Batched()
  single(text: string): string[] {
    return [text];
  }

  // @ts-expect-error Mistake<"@Batched(): the method returns a list, or a promise of one, with a result per caller">'.
  @Batched({ batchSize: 8 })
  async count(rows: string[]): Promise<number> {
    return rows.length;
  }

  // @ts-expect-error Mistake<"@Batched({ types }): each type is the class of the entries of its parameter">'.
  @Batched({ types: [TextDto] })
  score(bodies: ScoreDto[]): ScoreDto[] {
    return bodies;
  }

  // @ts-expect-error Mistake<"@Batched({ types }): each type is the class of the entries of its parameter">'.
  @Batched({ types: [ScoreDto, Number] })
  scoreAll(bodies: ScoreDto[], _models: string[]): ScoreDto[] {
    return bodies;
  }

  // @ts-expect-error Mistake<"@Batched({ types }): give one type for each parameter">'.
  @Batched({ types: [ScoreDto] })
  scoreBoth(bodies: ScoreDto[], _models: string[]): ScoreDto[] {
    return bodies;
  }
}

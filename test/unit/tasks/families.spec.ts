import { fileURLToPath } from 'node:url';
import { describe, expect, it } from '@jest/globals';
import { type BatchEndEvent, type ServingDefinition } from 'nestjs-serving';
import { rerank, textClassification, textEmbedding } from 'nestjs-serving/tasks';
import { useTypedServings } from '../../fixtures/serving/use-servings.js';
import { readTiny, tinyFiles } from '../../fixtures/tasks/tiny-models.js';

/** What Python makes of the texts, by family; `make_families.py` writes it. */
const { texts, query, embeddings, scores, labels } = JSON.parse(
  readTiny('families/answers.json').toString(),
) as {
  readonly texts: readonly string[];
  readonly query: string;
  /** By family and prompt. */
  readonly embeddings: Readonly<Record<string, Readonly<Record<string, Rows>>>>;
  /** Of the query with each text. */
  readonly scores: Readonly<Record<string, readonly number[]>>;
  /** In the order of the labels' names. */
  readonly labels: Readonly<Record<string, Rows>>;
};

type Rows = readonly (readonly number[])[];

const start = useTypedServings();

const optionsOf = (family: string) => ({
  name: 'net',
  model: {
    from: fileURLToPath(new URL(`../../fixtures/tasks/families/${family}`, import.meta.url)),
    isolation: 'none' as const,
  },
  tooLong: 'cut' as const,
  batchTimeout: 5,
});

/** The answers to all texts in concurrent calls, which share padded batches, and to each alone. */
async function answersOf<Input, Output>(
  definition: ServingDefinition<Input, Output>,
  inputs: readonly Input[],
): Promise<{ readonly together: readonly Output[]; readonly alone: readonly Output[] }> {
  const serving = await start(definition);
  const ends: BatchEndEvent[] = [];
  serving.eventsOf('batch:end').subscribe((event) => ends.push(event));
  const together = await Promise.all(inputs.map((input) => serving.batchedRun(input)));
  expect(ends.filter(({ cost }) => cost!.padded > cost!.sum)).not.toEqual([]);
  const alone: Output[] = [];
  for (const input of inputs) {
    alone.push(await serving.run(input));
  }
  return { together, alone };
}

/** The texts whose answers differ from Python's, each with the largest difference. */
function apart(ours: Rows, theirs: Rows): readonly (readonly [string, number])[] {
  expect(ours.map(({ length }) => length)).toEqual(theirs.map(({ length }) => length));
  return theirs
    .map((row, i) => [texts[i]!, largest(row.map((value, j) => value - ours[i]![j]!))] as const)
    .filter(([, difference]) => !(difference < 5e-5));
}

function largest(numbers: readonly number[]): number {
  return Math.max(...numbers.map(Math.abs));
}

describe('A family of text models', () => {
  it.each(
    Object.entries(embeddings).flatMap(([family, prompts]) =>
      Object.entries(prompts).map(([prompt, vectors]) => [family, prompt, vectors] as const),
    ),
  )(
    "[FQ1] [FQ2] has Python's vectors, alone and together: %s, prompt %j",
    async (family, prompt, vectors) => {
      const inputs = texts.map((text) => (prompt === '' ? text : { text, prompt }));
      const { together, alone } = await answersOf(textEmbedding(optionsOf(family)), inputs);
      for (const replies of [together, alone]) {
        expect(
          apart(
            replies.map(({ vector }) => [...vector]),
            vectors,
          ),
        ).toEqual([]);
      }
    },
  );

  it.each(Object.entries(scores))(
    "[FQ1] [FQ3] ranks documents by Python's scores, alone and together: %s",
    async (family, theirs) => {
      const inputs = texts.map((text) => ({ query, documents: [text] }));
      const definition = rerank(optionsOf(family));
      const { together, alone } = await answersOf(definition, inputs);
      const list = await (await start(definition)).batchedRun({ query, documents: texts });
      const ranked = list.toSorted((one, other) => one.index - other.index);
      for (const replies of [together, alone, ranked.map((each) => [each])]) {
        const ours = replies.map(([only]) => [only!.score]);
        expect(
          apart(
            ours,
            theirs.map((score) => [score]),
          ),
        ).toEqual([]);
      }
    },
  );

  it.each(Object.entries(labels))(
    "[FQ1] [FQ4] has Python's labels and numbers, alone and together: %s",
    async (family, theirs) => {
      const { model, ...options } = optionsOf(family);
      // The model for regression is the reranker, which config.json says otherwise of.
      const shared = family === 'bert-regression' ? 'bert-one-label' : family;
      const paths = ['config.json', 'tokenizer.json', 'tokenizer_config.json'];
      const from = {
        ...tinyFiles(`families/${family}`, paths),
        ...tinyFiles(`families/${shared}`, ['onnx/model.onnx']),
      };
      const definition = textClassification({ ...options, model: { ...model, from } });
      const { together, alone } = await answersOf(definition, texts);
      for (const replies of [together, alone]) {
        const ours = replies.map((scored) =>
          scored.toSorted((one, other) => (one.label < other.label ? -1 : 1)),
        );
        expect(
          apart(
            ours.map((scored) => scored.map(({ score }) => score)),
            theirs,
          ),
        ).toEqual([]);
      }
    },
  );
});

import { fileURLToPath } from 'node:url';
import { Tokenizer } from '@huggingface/tokenizers';
import { expect, it } from '@jest/globals';
import { InvalidInputError, InvalidServingError, RequestTooLargeError } from 'nestjs-serving';
import { rerank, type RerankOptions } from 'nestjs-serving/tasks';
import { InferenceSession, Tensor } from 'onnxruntime-node';
import { useTypedServings } from '../../fixtures/serving/use-servings.js';
import { warnings } from '../../fixtures/silent-log.js';
import { readTiny } from '../../fixtures/tasks/tiny-models.js';

/** A language model with one label, whose tokenizer writes a pair as one text. */
const folder = fileURLToPath(
  new URL('../../fixtures/tasks/families/qwen-one-label', import.meta.url),
);
const [head, middle, tail] = [
  '<|endoftext|>Query: ',
  '\nDocument: ',
  '<|endoftext|>\nIs it an answer?',
];
const template = `${head}{query}${middle}{document}${tail}`;
const query = 'rows of a batch';
const documents = ['a batch', ' many rows wait, and then run', 'Zzz!\n\n'];

const tokenizer = new Tokenizer(
  JSON.parse(readTiny('families/qwen-one-label/tokenizer.json').toString()) as object,
  {},
);
const idsOf = (text: string) => tokenizer.encode(text, { add_special_tokens: false }).ids;

const launch = useTypedServings();

function start(options: Partial<RerankOptions>) {
  const model = { from: folder, isolation: 'none' } as const;
  return launch(rerank({ name: 'judge', model, maxTokens: 60, ...options }));
}

/** The model's own number for these tokens. */
async function logitOf(ids: readonly number[]): Promise<number> {
  const session = await InferenceSession.create(`${folder}/onnx/model.onnx`);
  const tensorOf = (numbers: readonly number[]) =>
    new Tensor('int64', BigInt64Array.from(numbers, BigInt), [1, ids.length]);
  const feeds = {
    input_ids: tensorOf(ids),
    attention_mask: tensorOf(ids.map(() => 1)),
    position_ids: tensorOf(ids.map((_, at) => at)),
  };
  const known = Object.entries(feeds).filter(([name]) => session.inputNames.includes(name));
  const { logits } = await session.run(Object.fromEntries(known));
  return Number(logits!.data[0]);
}

it('[22.32] A template is read as one text up to the document, and counts in the tokens', async () => {
  const serving = await start({ template, scores: 'raw' });
  const ranked = await serving.batchedRun({ query, documents });
  for (const [index, document] of documents.entries()) {
    const ids = [...idsOf(head + query + middle + document), ...idsOf(tail)];
    expect(ranked.find((each) => each.index === index)).toEqual({
      index,
      score: expect.closeTo(await logitOf(ids), 4),
      tokens: ids.length,
    });
  }
});

it('[22.32] Only the document is cut, so the question behind it stays', async () => {
  const serving = await start({ template, scores: 'raw', tooLong: 'cut' });
  const [only] = await serving.batchedRun({ query, documents: ['batch '.repeat(100)] });
  const end = idsOf(tail);
  const text = idsOf(head + query + middle + 'batch '.repeat(100)).slice(0, 60 - end.length);
  expect(only).toEqual({
    index: 0,
    score: expect.closeTo(await logitOf([...text, ...end]), 4),
    tokens: 60,
  });
});

it('[22.32] What is too long, or has special tokens, is refused with its place', async () => {
  const refused = [
    [
      { query, documents: ['batch '.repeat(100)] },
      RequestTooLargeError,
      /documents\[0\]: .*most 60/,
    ],
    [
      { query, documents: ['<|endoftext|>'] },
      InvalidInputError,
      /documents\[0\]: .*"<\|endoftext\|>"/,
    ],
    [{ query: 'a <|endoftext|>', documents }, InvalidInputError, /query: .*"<\|endoftext\|>"/],
    [
      { query: 'row '.repeat(60), documents },
      RequestTooLargeError,
      /query: .* at most 60 tokens, and its template has \d+ with this text; shorten it/,
    ],
  ] as const;
  const strict = await start({ template });
  for (const [input, type, message] of refused) {
    const call = strict.batchedRun(input);
    await expect(call).rejects.toThrow(message);
    await expect(call).rejects.toBeInstanceOf(type);
  }
  const cutting = await start({ template, tooLong: 'cut' });
  await expect(cutting.batchedRun(refused[3][0])).rejects.toThrow(refused[3][2]);
});

it.each([
  '',
  '{query}',
  '{document} {query}',
  '{query} {document} {query}',
  '{query}{document}{document}',
  5,
])('[22.32] refuses the template %j', (given) => {
  const make = () => rerank({ name: 'judge', model: folder, template: given as string });
  expect(make).toThrow(InvalidServingError);
  expect(make).toThrow(/"template" is .*; allowed is a text with \{query\} once, and \{document\}/);
});

it('[22.32] A tokenizer that writes a pair as one text is warned of, unless a template is given', async () => {
  const warned = warnings();
  await start({ template });
  expect(warned.filter((line) => line.includes('template'))).toEqual([]);
  await start({});
  expect(warned).toContainEqual(
    expect.stringMatching(/puts nothing between two texts.*give it as the option template/),
  );
});

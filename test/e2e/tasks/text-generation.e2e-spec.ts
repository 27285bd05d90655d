import { fileURLToPath } from 'node:url';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from '@jest/globals';
import {
  createServing,
  InvalidInputError,
  InvalidServingError,
  type LocalServing,
  RequestTooLargeError,
  ServingLoadError,
} from 'nestjs-serving';
import {
  type ChatToAnswer,
  type GeneratedText,
  textGeneration,
  type TextGenerationOptions,
  type TextToContinue,
} from 'nestjs-serving/tasks';
import { type ModelFiles } from '../../../lib/extensions/tasks/index.js';
import { iterated, outputsOf } from '../../fixtures/async/streams.js';
import { silenceLog } from '../../fixtures/silent-log.js';
import { readTiny, tinyFiles, written } from '../../fixtures/tasks/tiny-models.js';

type Input = string | TextToContinue | ChatToAnswer;
type Writer = LocalServing<Input, GeneratedText>;

const { prompts, chats } = written;
const [{ text: short, greedy }] = prompts as [(typeof prompts)[0]];
const [{ messages }] = chats as [(typeof chats)[0]];
const exports = ['onnx/model.onnx', 'onnx/model_gqa.onnx', 'onnx/model_gqa_lens.onnx'];

const from = fileURLToPath(new URL('../../fixtures/tasks/generator', import.meta.url));
const definitionOf = (options: Partial<TextGenerationOptions> = {}) =>
  textGeneration({ name: 'net', model: { from, file: exports[1]! }, ...options });

/** The files of the model, with others in their place; undefined for none. */
function filesOf(others: Record<string, object | string | undefined>) {
  const names = ['config', 'generation_config', 'tokenizer', 'tokenizer_config'];
  const model = readTiny('generator/onnx/model_gqa.onnx');
  const files = tinyFiles(
    'generator',
    names.map((name) => `${name}.json`),
    { 'onnx/model.onnx': model, ...others },
  );
  return { from: files as ModelFiles };
}

const configOf = (name: string): Record<string, unknown> =>
  JSON.parse(readTiny(`generator/${name}.json`).toString()) as Record<string, unknown>;

const withoutTemplate = { ...configOf('tokenizer_config'), chat_template: undefined };

/** What is left of Python's tokens, which go on behind an end. */
function endedAt(tokens: readonly number[], maxTokens = tokens.length) {
  const end = tokens.slice(0, maxTokens).findIndex((token) => token === 0 || token === 2);
  return end < 0
    ? { tokens: tokens.slice(0, maxTokens), finishReason: 'length', count: maxTokens }
    : { tokens: tokens.slice(0, end), finishReason: 'stop', count: end + 1 };
}

const summaryOf = ({ tokens, finishReason, usage }: GeneratedText) => ({
  tokens,
  finishReason,
  usage,
});

/** Every fourth answer is shorter than the others, so that calls join and leave at other times. */
const lengthOf = (index: number): number => 40 - (index % 4) * 9;

const cases: { readonly input: TextToContinue | ChatToAnswer; readonly expected: object }[] = [
  ...prompts.map(({ text, ...own }) => ({ ask: { prompt: text }, ...own })),
  ...chats.map(({ messages: all, ...own }) => ({ ask: { messages: all }, ...own })),
].map(({ ask, ids, greedy: python }, i) => {
  const { tokens, finishReason, count } = endedAt(python, lengthOf(i));
  return {
    input: { ...ask, maxTokens: lengthOf(i) },
    expected: {
      tokens,
      finishReason,
      usage: { promptTokens: ids.length, completionTokens: count },
    },
  };
});

const chatOf = (count: number, content: string): ChatToAnswer => ({
  messages: Array.from({ length: count }, () => ({ role: 'user', content })),
  maxTokens: 1,
});

describe.each(exports)('textGeneration with %s', (file) => {
  let serving: Writer;
  beforeAll(async () => {
    silenceLog();
    serving = createServing(definitionOf({ model: { from, file }, batchSize: 3 }));
    await serving.start();
  });
  afterAll(() => serving.close());

  it("[22.9] writes Python's tokens for many calls at the same time", async () => {
    const answers = await Promise.all(cases.map(({ input }) => serving.batchedRun(input)));
    expect(answers.map(summaryOf)).toEqual(cases.map(({ expected }) => expected));
  });

  it("[22.9] writes Python's tokens and text for each call alone", async () => {
    for (const { input, expected } of cases) {
      expect(summaryOf(await serving.batchedRun(input))).toEqual(expected);
    }
    for (const { text, greedy: python, decoded } of prompts) {
      const answer = await serving.batchedRun({ prompt: text, maxTokens: 40 });
      if (endedAt(python).finishReason === 'length') {
        expect(answer.text).toBe(decoded);
      } else {
        expect(decoded.startsWith(answer.text.replace(/\ufffd+$/, ''))).toBe(true);
      }
    }
  });

  it("[22.14] writes Python's tokens with a repetition penalty", async () => {
    const answers = await Promise.all(
      prompts.map(({ text }) =>
        serving.batchedRun({ prompt: text, maxTokens: 40, repetitionPenalty: 1.3 }),
      ),
    );
    expect(answers.map(({ tokens }) => tokens)).toEqual(
      prompts.map(({ penalty }) => endedAt(penalty).tokens),
    );
  });

  it("[22.14] gives Python's log-probabilities, if a call asks for them", async () => {
    const answers = await Promise.all(
      prompts.map(({ text }) =>
        serving.batchedRun({ prompt: text, maxTokens: 5, logprobs: true, repetitionPenalty: 1 }),
      ),
    );
    answers.forEach(({ logprobs, tokens }, i) => {
      expect(logprobs).toHaveLength(tokens.length);
      logprobs!.forEach(({ logprob }, at) => {
        expect(Math.abs(logprob - prompts[i]!.logprobs[at]!)).toBeLessThan(1e-4);
      });
    });
    expect(await serving.batchedRun({ prompt: short, maxTokens: 1 })).not.toHaveProperty(
      'logprobs',
    );
  });

  it("[22.14] gives all of an answer's text to log-probabilities, also what its end completes", async () => {
    let ended = 0;
    for (let seed = 1; seed <= 40; seed++) {
      const { text, tokens, logprobs, finishReason } = await serving.batchedRun({
        prompt: short,
        maxTokens: 40,
        temperature: 2,
        seed,
        stop: ['\ufffd\ufffd\ufffd', 'e the'],
        logprobs: true,
      });
      expect(logprobs!.map((each) => each.text).join('')).toBe(text);
      ended += logprobs!.length - tokens.length;
      expect(finishReason === 'length' && logprobs!.length > tokens.length).toBe(false);
    }
    expect(ended).toBeGreaterThan(0);
  });

  it('[22.10] streams pieces that joined are the answer of a call', async () => {
    const whole = await Promise.all(
      cases.map(({ input }) => serving.batchedRun({ ...input, logprobs: true })),
    );
    const streams = await Promise.all(
      cases.map(({ input }) => iterated(serving.stream({ ...input, logprobs: true }))),
    );
    for (const [i, events] of streams.entries()) {
      const pieces = outputsOf(events) as GeneratedText[];
      expect(pieces.length).toBeGreaterThan(1);
      expect(pieces.map(({ text }) => text).join('')).toBe(whole[i]!.text);
      expect(pieces.flatMap(({ tokens }) => tokens)).toEqual(whole[i]!.tokens);
      // Sums are rounded differently beside others.
      expect(pieces.flatMap(({ logprobs }) => logprobs)).toEqual(
        whole[i]!.logprobs!.map(({ text, logprob }) => ({
          text,
          logprob: expect.closeTo(logprob, 4),
        })),
      );
      const [end, ...others] = pieces.toReversed();
      expect(end).toMatchObject(summaryOf({ ...whole[i]!, tokens: end!.tokens }));
      expect(others.every((piece) => !('finishReason' in piece) && !('usage' in piece))).toBe(true);
      expect(others.every(({ text }) => text !== '' && !text.endsWith('\ufffd'))).toBe(true);
    }
  });

  it('[22.13] writes the same when it reads prompts in parts of 7 tokens', async () => {
    const parts = createServing(definitionOf({ model: { from, file }, batchSize: 3, prefill: 7 }));
    try {
      await parts.start();
      const answers = await Promise.all(cases.map(({ input }) => parts.batchedRun(input)));
      expect(answers.map(summaryOf)).toEqual(cases.map(({ expected }) => expected));
    } finally {
      await parts.close();
    }
  });
});

it('[22.9] writes the same in a process of its own', async () => {
  const apart = createServing(
    definitionOf({ model: { from, file: exports[1]!, isolation: 'process' } }),
  );
  try {
    await apart.start();
    const { tokens } = await apart.batchedRun({ prompt: short, maxTokens: 3 });
    expect(tokens).toEqual(greedy.slice(0, 3));
  } finally {
    await apart.close();
  }
});

describe('textGeneration', () => {
  const started: { close(): Promise<void> }[] = [];
  const start = async (options: Partial<TextGenerationOptions>): Promise<Writer> => {
    const own = createServing(definitionOf(options));
    started.push(own);
    await own.start();
    return own;
  };
  /** For calls that need no options of the serving. */
  let serving: Writer;

  beforeAll(async () => {
    silenceLog();
    serving = createServing(definitionOf());
    await serving.start();
  });
  afterAll(() => serving.close());
  beforeEach(() => silenceLog());
  afterEach(() => Promise.all(started.splice(0).map((own) => own.close())));

  it("[22.9] writes Python's tokens in several partitions, and in inline runs", async () => {
    const two = await start({ partitions: 2, batchSize: 2 });
    const answers = await Promise.all([
      ...cases.map(({ input }) => two.batchedRun(input)),
      two.run(cases[0]!.input),
    ]);
    expect(answers.map(summaryOf)).toEqual([...cases, cases[0]!].map(({ expected }) => expected));
  });

  it('[22.9] [22.10] takes a prompt as a text, and writes until an end token or the context', async () => {
    const { text, greedy: python } = prompts.find(
      (each) => endedAt(each.greedy).finishReason === 'stop',
    )!;
    const { tokens, finishReason } = endedAt(python);
    expect(await serving.batchedRun(text)).toMatchObject({ tokens, finishReason });

    const small = await start({ maxTokens: 20 });
    expect(await small.batchedRun({ prompt: short, maxTokens: 1000 })).toEqual(
      expect.objectContaining({
        tokens: greedy.slice(0, 19),
        finishReason: 'length',
        usage: { promptTokens: 1, completionTokens: 19 },
      }),
    );
  });

  // The answer begins with "\ufe0fss\ufffdserving", "ec" and "batch".
  it.each([
    ['a token', 'serving', '\ufe0fss\ufffd', 4],
    ['parts of two tokens', 'ingec', '\ufe0fss\ufffdserv', 5],
    ['parts of three tokens', 'gecb', '\ufe0fss\ufffdservin', 6],
    ['the first of several', ['batch', 'ecb', 'nowhere'], '\ufe0fss\ufffdserving', 6],
    ['the beginning', ['\ufe0f'], '', 1],
  ])('[22.10] ends before a stop string that is %s', async (_, stop, text, count) => {
    const ask = { prompt: short, stop, maxTokens: 40 };
    const expected = {
      text,
      tokens: greedy.slice(0, count),
      finishReason: 'stop',
      usage: { promptTokens: 1, completionTokens: count },
    };
    expect(await serving.batchedRun(ask)).toEqual(expected);
    const pieces = outputsOf(await iterated(serving.stream(ask))) as GeneratedText[];
    expect(pieces.map((piece) => piece.text).join('')).toBe(text);
    expect(pieces.at(-1)).toMatchObject({ finishReason: 'stop' });
  });

  it('[FZ6] A conversation of too many messages or characters is refused before it is rendered', async () => {
    const many = serving.batchedRun(chatOf(1025, ''));
    await expect(many).rejects.toThrow(RequestTooLargeError);
    await expect(many).rejects.toThrow('at most 1024 messages, and one has 1025');
    await expect(serving.batchedRun(chatOf(2, 'a '.repeat(5000)))).rejects.toThrow(
      'one has 20008 characters',
    );
  });

  it('[FZ1] A call may have 16 stop strings of 256 characters, and more are refused', async () => {
    const stop = Array<string>(16).fill('q'.repeat(256));
    expect(await serving.batchedRun({ prompt: short, stop, maxTokens: 2 })).toMatchObject({
      finishReason: 'length',
    });
    for (const [wrong, said] of [
      [[...stop, 'q'], 'was given 17 stop strings; allowed are 16'],
      [['q'.repeat(257)], 'allowed are strings of 1 to 256 characters'],
      [Array<string>(1_400_000).fill('zq'), 'was given 1400000 stop strings; allowed are 16'],
    ] as const) {
      const refused = await serving
        .batchedRun({ prompt: short, stop: wrong })
        .catch((error: unknown) => error);
      expect(refused).toBeInstanceOf(InvalidInputError);
      expect((refused as Error).message).toContain(said);
    }
  });

  /** Answers of a model whose files name one end token, and Python's, which go on behind another. */
  const { messages: ended, greedy: withEnd } = chats.find(({ greedy: tokens }) =>
    tokens.includes(2),
  )!;
  const atEnd = {
    tokens: withEnd.slice(0, withEnd.indexOf(2)),
    finishReason: 'stop',
    usage: expect.objectContaining({ completionTokens: withEnd.indexOf(2) + 1 }) as unknown,
  };
  const unended = (options: Partial<TextGenerationOptions> = {}) =>
    start({
      model: filesOf({
        'generation_config.json': { ...configOf('generation_config'), eos_token_id: 0 },
      }),
      ...options,
    });

  it('[FQ9] A stop string that is a special token ends the answer at that token, in the text and in a stream', async () => {
    const own = await unended();
    const ask = { messages: ended, maxTokens: withEnd.indexOf(2) + 4 };
    expect(await own.batchedRun(ask)).toMatchObject({ finishReason: 'length' });
    for (const end of [
      { stop: '<|im_end|>' },
      { stop: ['nowhere', '<|im_end|>'] },
      { endTokens: [2] },
      { endTokens: ['<|im_end|>', 1] },
    ]) {
      expect(await own.batchedRun({ ...ask, ...end })).toMatchObject(atEnd);
    }
    // Its own end tokens stay, and those of a call are no other's.
    const pieces = outputsOf(await iterated(own.stream({ ...ask, stop: '<|im_end|>' })));
    expect(pieces.at(-1)).toMatchObject({ finishReason: 'stop' });
    expect(await own.batchedRun(ask)).toMatchObject({ finishReason: 'length' });
  });

  it('[FQ9] A serving may name its end tokens', async () => {
    const ask = { messages: ended, maxTokens: withEnd.indexOf(2) + 4 };
    for (const endTokens of [['<|im_end|>'], [2]]) {
      const own = await unended({ endTokens });
      expect(await own.batchedRun(ask)).toMatchObject(atEnd);
    }
    const without = { ...configOf('generation_config'), eos_token_id: undefined };
    const config = { ...configOf('config'), eos_token_id: undefined };
    const own = await start({
      model: filesOf({ 'generation_config.json': without, 'config.json': config }),
      endTokens: [2],
    });
    expect(await own.batchedRun(ask)).toMatchObject(atEnd);
  });

  it.each([
    [{ stop: 'so <|im_end|>' }, 'give "<|im_end|>" alone'],
    [{ endTokens: ['<|nothing|>'] }, 'no added token with that text'],
    [{ endTokens: [432] }, 'was given the end token 432, and its model has 432 tokens, from 0 on'],
    [{ endTokens: [-1] }, 'was given endTokens [ -1 ]; allowed are at most 16 numbers'],
    [{ endTokens: 2 as never }, 'was given endTokens 2;'],
    [{ endTokens: Array<number>(17).fill(2) }, 'allowed are at most 16 numbers'],
  ])('[FQ9] An end that cannot come is refused: %j', async (end, said) => {
    const refused = serving.batchedRun({ prompt: short, ...end });
    await expect(refused).rejects.toThrow(InvalidInputError);
    await expect(refused).rejects.toThrow(said);
  });

  it.each([
    [[432], 'was given the end token 432, and its model has 432 tokens'],
    [['<|nothing|>'], 'was given the end token "<|nothing|>"'],
    [[], 'option "endTokens" is []; allowed is a list of numbers of tokens'],
    [2 as never, 'option "endTokens" is 2'],
  ])(
    '[FQ9] A serving with end tokens that its model lacks does not start: %j',
    async (endTokens, said) => {
      const starting = (async () => start({ endTokens }))();
      await expect(starting).rejects.toThrow(InvalidServingError);
      await expect(starting).rejects.toThrow(said);
    },
  );

  it('[22.10] gives the text of a stop string that is not whole at the end', async () => {
    const ask = { prompt: short, stop: ['ecbatchx', 'nowhere'], maxTokens: 5 };
    expect(await serving.batchedRun(ask)).toMatchObject({
      text: '\ufe0fss\ufffdservingec',
      finishReason: 'length',
    });
  });

  const drawn = (seed?: number, more: object = {}): Promise<readonly number[]> =>
    serving
      .batchedRun({
        prompt: short,
        maxTokens: 30,
        temperature: 1,
        ...(seed !== undefined && { seed }),
        ...more,
      })
      .then(({ tokens }) => tokens);

  it('[22.14] draws the same tokens for a seed alone and beside others, and else different ones', async () => {
    const alone = await drawn(7);
    const [beside, again, ...others] = await Promise.all([
      drawn(7),
      drawn(7),
      ...[1, 2, 3].map((seed) => drawn(seed)),
      drawn(),
      drawn(),
      ...cases.slice(0, 5).map(({ input }) => serving.batchedRun(input)),
    ]);
    expect([beside, again]).toEqual([alone, alone]);
    const lists = [alone, ...others.slice(0, 5)].map((tokens) => JSON.stringify(tokens));
    expect(new Set(lists).size).toBe(6);
  });

  it('[22.14] takes the likeliest tokens with topK 1, and with a small topP', async () => {
    const { tokens } = endedAt(greedy, 30);
    expect(await drawn(7, { temperature: 2, topK: 1 })).toEqual(tokens);
    expect(await drawn(7, { temperature: 2, topP: 0.0001 })).toEqual(tokens);
    expect(await drawn(7, { temperature: 0 })).toEqual(tokens);
  });

  it('[22.13] gives the place of a reader that leaves to another call', async () => {
    const one = await start({ batchSize: 1 });
    let steps = 0;
    one.eventsOf('sequence:step').subscribe(() => steps++);
    // Its answer has more than 300 tokens.
    const long = one.stream({ prompt: 'bbbbb' })[Symbol.asyncIterator]();
    await long.next();
    const waiting = one.batchedRun({ prompt: short, maxTokens: 5 });
    await long.return!();
    expect((await waiting).tokens).toEqual(greedy.slice(0, 5));
    expect(steps).toBeLessThan(200);

    const leaving = new AbortController();
    const call = one.batchedRun({ prompt: 'bbbbb' }, { signal: leaving.signal });
    leaving.abort(new Error('gone'));
    await expect(call).rejects.toThrow('gone');
    expect((await one.batchedRun({ prompt: short, maxTokens: 5 })).tokens).toHaveLength(5);
  });

  it.each<[unknown, string]>([
    ['', 'takes a text that is not empty, { prompt }, or { messages: [{ role, content }] }'],
    [7, 'and was given 7'],
    [null, 'and was given null'],
    [['a'], 'takes a text that is not empty'],
    [{}, 'takes a text that is not empty'],
    [{ prompt: '' }, '{ prompt }'],
    [{ prompt: 7 }, '{ prompt }'],
    [{ messages: [] }, '{ messages: [{ role, content }] }'],
    [{ messages: 'x' }, '{ messages: [{ role, content }] }'],
    [{ messages: ['x'] }, '{ messages: [{ role, content }] }'],
    [{ messages: [{ role: 'user' }] }, '{ messages: [{ role, content }] }'],
    [{ messages: [{ role: '', content: 'x' }] }, '{ messages: [{ role, content }] }'],
    [{ messages: [{ role: 'user', content: 7 }] }, '{ messages: [{ role, content }] }'],
    [{ prompt: 'a', messages }, '{ prompt }, or { messages: [{ role, content }] }'],
    [{ prompt: '', messages }, '{ prompt }, or { messages: [{ role, content }] }'],
    [{ prompt: 7, messages }, '{ prompt }, or { messages: [{ role, content }] }'],
    [{ prompt: null, messages }, '{ prompt }, or { messages: [{ role, content }] }'],
    [{ prompt: 'a', maxToken: 5 }, 'the unknown option "maxToken"; known are maxTokens'],
    [{ messages, Seed: 5 }, 'the unknown option "Seed"'],
    [{ prompt: 'a', maxTokens: 0 }, 'maxTokens 0; allowed is a whole number of 1 or more'],
    [{ prompt: 'a', maxTokens: 1.5 }, 'maxTokens 1.5'],
    [{ prompt: 'a', maxTokens: '5' }, 'maxTokens "5"'],
    [{ prompt: 'a', maxTokens: Infinity }, 'maxTokens Infinity'],
    [{ prompt: 'a', maxTokens: null }, 'maxTokens null'],
    [{ messages, temperature: -0.1 }, 'temperature -0.1; allowed is a number from 0 to 2'],
    [{ prompt: 'a', temperature: 2.1 }, 'temperature 2.1'],
    [{ prompt: 'a', temperature: NaN }, 'temperature NaN'],
    [{ prompt: 'a', temperature: '1' }, 'temperature "1"'],
    [{ prompt: 'a', topK: 0 }, 'topK 0; allowed is a whole number of 1 or more'],
    [{ prompt: 'a', topK: 1.5 }, 'topK 1.5'],
    [{ prompt: 'a', topP: 0 }, 'topP 0; allowed is a number above 0 and up to 1'],
    [{ prompt: 'a', topP: 1.1 }, 'topP 1.1'],
    [{ prompt: 'a', repetitionPenalty: 0 }, 'repetitionPenalty 0; allowed is a number above 0'],
    [{ prompt: 'a', repetitionPenalty: 10.1 }, 'repetitionPenalty 10.1'],
    [{ prompt: 'a', seed: 0.5 }, 'seed 0.5; allowed is a whole number'],
    [{ prompt: 'a', seed: '7' }, 'seed "7"'],
    [{ prompt: 'a', stop: '' }, 'stop ""; allowed are strings of 1 to 256 characters'],
    [{ prompt: 'a', stop: 7 }, 'stop 7'],
    [{ prompt: 'a', stop: ['a', ''] }, "stop [ 'a', '' ]"],
    [{ prompt: 'a', logprobs: 1 }, 'logprobs 1; allowed is true or false'],
    // This task cannot read it as plain text, as others can.
    ['a <|im_end|> b', 'a text with "<|im_end|>", a special token of its model; take it out$'],
    [{ messages: [{ role: 'user', content: '<|im_start|>system' }] }, 'a text with "<|im_start|>"'],
    [{ messages: [{ role: '<|im_end|>', content: 'x' }] }, 'a text with "<|im_end|>"'],
  ])('[22.11] refuses %j before the queue, and no other call', async (input, message) => {
    let batches = 0;
    const watching = serving.eventsOf('batch:start').subscribe(() => batches++);
    const [refused, other] = await Promise.allSettled([
      serving.batchedRun(input as Input),
      serving.batchedRun({ prompt: short, maxTokens: 5 }),
    ]);
    expect(refused).toEqual({ status: 'rejected', reason: expect.any(InvalidInputError) });
    expect(`${String((refused as PromiseRejectedResult).reason)}$`).toContain(message);
    expect(String((refused as PromiseRejectedResult).reason)).toContain('"net"');
    expect(other).toMatchObject({ value: { tokens: greedy.slice(0, 5) } });
    watching.unsubscribe();
    expect(batches).toBe(1);
  });

  it('[22.11] reads special tokens as such where they are accepted', async () => {
    const accepting = await start({ specialTokens: 'accept' });
    const layout = messages.map(({ role, content }) => `<|im_start|>${role}\n${content}<|im_end|>`);
    const [prompt, chat, nested] = await Promise.all([
      accepting.batchedRun({
        prompt: [
          '<|im_start|>system\nYou are a helpful assistant.<|im_end|>',
          ...layout,
          '<|im_start|>assistant\n',
        ].join('\n'),
        maxTokens: 9,
      }),
      accepting.batchedRun({ messages, maxTokens: 9 }),
      accepting.batchedRun({ messages: [{ role: 'user', content: '<|im_end|>' }], maxTokens: 9 }),
    ]);
    expect(prompt).toEqual(chat);
    expect(chat.tokens).toEqual(chats[0]!.greedy.slice(0, 9));
    expect(nested.tokens).toHaveLength(9);
  });

  it('[22.11] refuses a prompt that leaves no room for an answer, or has too many tokens', async () => {
    const small = await start({ maxTokens: 20 });
    const filling = prompts.find(({ ids }) => ids.length === 20)!.text;
    const refused = small.batchedRun(filling);
    await expect(refused).rejects.toThrow(RequestTooLargeError);
    await expect(refused).rejects.toThrow(
      'the prompt has 20 tokens, and leaves no room for an answer: both together may have 20',
    );
    for (const input of [prompts[5]!.text, 'x'.repeat(10_000), { messages }]) {
      const large = small.batchedRun(input);
      await expect(large).rejects.toThrow(RequestTooLargeError);
      await expect(large).rejects.toThrow('reads texts of at most 20 tokens');
      // That is no option of this task.
      await expect(large).rejects.not.toThrow('tooLong');
    }
    expect((await small.batchedRun(prompts[3]!.text)).usage!.promptTokens).toBe(10);
  });

  it('[FZ11] A chat template that loops for ever fails its call, and the serving goes on', async () => {
    const chatTemplate =
      "{% if messages[0].content == 'loop' %}{% for i in range(100000) %}" +
      '{% for j in range(100000) %}{% endfor %}{% endfor %}{% endif %}{{ messages[0].content }}';
    const own = await start({ chatTemplate });
    const ask = (content: string) =>
      own.batchedRun({ messages: [{ role: 'user', content }], maxTokens: 1 });
    await expect(ask('loop')).rejects.toThrow('timed out after 2000ms');
    expect(await ask('plain')).toMatchObject({ text: expect.any(String) });
  });

  it('[22.11] refuses messages that the chat template refuses, or lays out as nothing', async () => {
    const chatTemplate =
      "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system here') }}{% endif %}" +
      "{% if messages[0]['role'] == 'user' %}{{ messages[0]['content'] }}{% endif %}";
    const own = await start({ chatTemplate });
    const outcomes = await Promise.allSettled(
      ['system', 'nobody', 'user'].map((role) =>
        own.batchedRun({ messages: [{ role, content: short }], maxTokens: 40 }),
      ),
    );
    expect(outcomes).toEqual([
      { status: 'rejected', reason: expect.any(InvalidInputError) },
      { status: 'rejected', reason: expect.any(InvalidInputError) },
      { status: 'fulfilled', value: expect.objectContaining({ tokens: greedy }) },
    ]);
    expect(String((outcomes[0] as PromiseRejectedResult).reason)).toContain(
      'the chat template of its model refuses these messages: no system here',
    );
  });

  it('[22.11] lets no field of a message bring special tokens into a conversation', async () => {
    const own = await start({
      chatTemplate: "{% for message in messages %}{{ message['name'] }} {% endfor %}",
    });
    const named = [{ role: 'user', content: 'x', name: '<|im_start|>system' }];
    const outcome = await own.batchedRun({ messages: named, maxTokens: 1 }).then(
      ({ usage }) => usage!.promptTokens,
      (error: unknown) => error,
    );
    // It is refused, or the template doesn't get it.
    expect(outcome === 1 || outcome instanceof InvalidInputError).toBe(true);
  });

  it('[22.11] refuses messages for a model without a chat template, with the remedy', async () => {
    const own = await start({ model: filesOf({ 'tokenizer_config.json': withoutTemplate }) });
    const refused = own.batchedRun({ messages });
    await expect(refused).rejects.toThrow(InvalidInputError);
    await expect(refused).rejects.toThrow(
      'its model has no chat template; give the option chatTemplate, or call it with { prompt }',
    );
    expect((await own.batchedRun({ prompt: short, maxTokens: 5 })).tokens).toHaveLength(5);
  });

  const named = "{{ bos_token }}{{ messages[0]['content'] }}";
  it.each<[string, Record<string, object | string>, string | undefined]>([
    ['the option', {}, named],
    [
      'a file of its own',
      { 'tokenizer_config.json': withoutTemplate, 'chat_template.jinja': named },
      undefined,
    ],
    [
      'a file of its own, before that of the configuration as in Python',
      { 'chat_template.jinja': named },
      undefined,
    ],
    [
      'the one that is named default',
      {
        'tokenizer_config.json': {
          ...withoutTemplate,
          chat_template: [
            { name: 'tool_use', template: 'x' },
            { name: 'default', template: named },
          ],
        },
      },
      undefined,
    ],
    [
      'one with a token that is an object',
      {
        'tokenizer_config.json': {
          ...withoutTemplate,
          chat_template: named,
          bos_token: { content: '<|endoftext|>', special: true },
        },
      },
      undefined,
    ],
  ])('[22.9] lays messages out by the chat template: %s', async (_, files, chatTemplate) => {
    const accepting = await start({ specialTokens: 'accept' });
    const expected = await accepting.batchedRun({ prompt: '<|endoftext|>Hello!', maxTokens: 9 });
    const own = await start({ model: filesOf(files), ...(chatTemplate && { chatTemplate }) });
    const chat = [{ role: 'user', content: 'Hello!' }];
    expect(await own.batchedRun({ messages: chat, maxTokens: 9 })).toEqual(expected);
    expect(expected.usage!.promptTokens).toBe(prompts[1]!.ids.length + 1);
  });

  const growing = readTiny('generator/onnx/model.onnx');
  /** The growing export, with other names of the same length. */
  const renamed = (name: string, other: string): Buffer =>
    Buffer.from(growing.toString('latin1').replaceAll(name, other), 'latin1');

  it.each<[string, Partial<TextGenerationOptions>, string]>([
    [
      'a model without a cache',
      { model: filesOf({ 'onnx/model.onnx': readTiny('embedder/onnx/model.onnx') }) },
      'is no decoder that textGeneration can run: it has no inputs past_key_values.*, so it would ' +
        'read a text again for each token; export it with its cache, as optimum',
    ],
    [
      'a model with an unknown input',
      { model: filesOf({ 'onnx/model.onnx': renamed('position_ids', 'position_idx') }) },
      'nothing fills its input position_idx',
    ],
    [
      'a model without logits',
      { model: filesOf({ 'onnx/model.onnx': renamed('logits', 'scores') }) },
      'it has no output logits',
    ],
    [
      'no model',
      { model: filesOf({ 'onnx/model.onnx': 'no model' }) },
      'Cannot load the model of the given files',
    ],
    [
      'no end token',
      {
        model: filesOf({
          'generation_config.json': undefined,
          'config.json': { ...configOf('config'), eos_token_id: null },
        }),
      },
      "The files of the given files don't state which token ends an answer (eos_token_id in " +
        'generation_config.json or config.json); add it',
    ],
    [
      'an invalid template',
      { chatTemplate: '{% for message in %}' },
      `The chat template of ${from} is invalid`,
    ],
    [
      'activations that are quantised',
      {
        model: filesOf({
          'onnx/model.onnx': Buffer.concat([
            readTiny('generator/onnx/model_gqa.onnx'),
            Buffer.from('DynamicQuantizeLinear'),
          ]),
        }),
      },
      'quantises its activations while it runs (DynamicQuantizeLinear), so that an answer would ' +
        'depend on the texts beside it; use an export in fp32',
    ],
  ])('[22.12] does not start with %s', async (_, options, message) => {
    const failed = start(options);
    await expect(failed).rejects.toThrow(ServingLoadError);
    await expect(failed).rejects.toThrow(message);
    await expect(failed).rejects.toThrow('Serving "net"');
  });

  it('[22.12] does not start with more tokens than the model reads', async () => {
    const failed = start({ maxTokens: 513 });
    await expect(failed).rejects.toThrow(InvalidServingError);
    await expect(failed).rejects.toThrow(
      `maxTokens is 513, and the model of ${from} reads at most`,
    );
  });

  it('[22.12] takes the end token of config.json where generation_config.json is missing', async () => {
    const own = await start({ model: filesOf({ 'generation_config.json': undefined }) });
    const { text } = prompts[2]!;
    // That file has 2 alone, and this answer goes on behind 0.
    const { tokens } = await own.batchedRun({ prompt: text, maxTokens: 40 });
    expect(tokens).toEqual(prompts[2]!.greedy);
  });

  it('[22.12] reads at most 4096 tokens by default, where the files state no limit', async () => {
    const config = { ...configOf('tokenizer_config'), model_max_length: undefined };
    const model = { ...configOf('config'), max_position_embeddings: undefined };
    const own = await start({
      model: filesOf({ 'tokenizer_config.json': config, 'config.json': model }),
      warmUp: [{ prompt: short, maxTokens: 1 }],
    });
    const large = own.batchedRun('x'.repeat(4097));
    await expect(large).rejects.toThrow('reads texts of at most 4096 tokens');
  });

  it.each<[object, string]>([
    [
      { model: { from, session: { executionProviders: ['cuda'] } } },
      'option "model.session.executionProviders" is [ \'cuda\' ]; allowed is no provider but the ' +
        'CPU: elsewhere the runtime would copy the cache between two tokens; use a server made for ' +
        'that, such as vLLM',
    ],
    [{ tooLong: 'cut' }, 'option "tooLong" is "cut"; allowed is nothing here'],
    [{ batchSize: 0 }, 'option "batchSize" is 0; allowed is'],
    [{ batchSize: 1.5 }, 'option "batchSize" is 1.5'],
    [{ prefill: 0 }, 'option "prefill" is 0; allowed is'],
    [{ maxTokens: 0 }, 'option "maxTokens" is 0'],
    [{ chatTemplate: '' }, 'option "chatTemplate" is ""; allowed is a Jinja template'],
    [{ specialTokens: 'allow' }, 'option "specialTokens" is "allow"'],
    [{ model: '/no/such/folder' }, 'there is no folder /no/such/folder'],
    [
      { model: { from, isolation: 'none' } },
      '"model.isolation" is "none"; allowed is "thread" or "process"',
    ],
    [{ model: { from, blockingLimit: 5 } }, '"model.blockingLimit" is 5; allowed is nothing here'],
  ])('[22.12] refuses the options %j', (options, message) => {
    const create = () => createServing(definitionOf(options));
    expect(create).toThrow(InvalidServingError);
    expect(create).toThrow(message);
  });
});

import { createServing } from 'nestjs-serving';
import { type ModelFiles, textGeneration } from 'nestjs-serving/tasks';
import { compare, type Measurement } from '../harness/measurement.js';
import type { Plan } from '../harness/plan.js';
import { interleave } from '../harness/rounds.js';
import { modelOfSample } from '../harness/sample-model.js';

const places = 8;
const prompts = [
  '写一首关于春天的诗',
  '什么是人工智能？',
  '天空为什么是蓝色的？',
  '讲一个关于猫的故事',
];
/** Longer than all answers. */
const schema = {
  type: 'object',
  properties: {
    titles: { type: 'array', items: { type: 'string' }, minItems: 100 },
    year: { type: 'integer', minimum: 1900, maximum: 2100 },
  },
  required: ['titles', 'year'],
};
/** About 2,000 tokens. */
const longPrompt = '春天来了，'.repeat(390);

/**
 * P25: what it gains to write answers together, what a form costs, and how a long prompt delays other
 * answers. Needs the model of the token stream sample; left out where it can't be fetched.
 */
export async function generation(plan: Plan): Promise<Measurement[]> {
  const files = await modelOfSample<ModelFiles>('P25', '04-token-stream', 'readModel');
  if (files === undefined) {
    return [];
  }
  const serving = createServing(
    textGeneration({
      name: 'writer',
      model: { from: files, session: { intraOpNumThreads: 1 } },
      batchSize: places,
    }),
  );
  await serving.start();
  const ask = (prompt: string, maxTokens: number) =>
    serving.batchedRun({ messages: [{ role: 'user', content: prompt }], maxTokens });
  /** Answers of 20 to 100 tokens. */
  const write = async (i: number): Promise<number> =>
    (await ask(prompts[i % prompts.length]!, 20 + ((i * 67) % 81))).usage!.completionTokens;
  /** The same count of tokens in JSON. */
  const writeHeld = async (i: number): Promise<number> => {
    const messages = [{ role: 'user', content: prompts[i % prompts.length]! }];
    const maxTokens = 20 + ((i * 67) % 81);
    const answer = await serving.batchedRun({ messages, maxTokens, format: { schema } });
    return answer.usage!.completionTokens;
  };
  const firstToken = async (): Promise<number> => {
    const begin = performance.now();
    await ask(prompts[0]!, 1);
    return performance.now() - begin;
  };
  const count = Math.ceil(plan.seconds * places * 2);
  const numbers = Array.from({ length: count }, (_, i) => i);

  const costs = await interleave(Math.ceil(plan.rounds / 3), {
    [`${places} places`]: () => cpuPerToken(() => Promise.all(numbers.map(write))),
    'one by one': () => cpuPerToken(() => oneByOne(numbers.slice(0, places), write)),
  });
  const delays = await interleave(Math.ceil(plan.rounds / 3), {
    'beside a prompt of 2,000 tokens': async () => {
      const long = ask(longPrompt, 1);
      await new Promise((resolve) => setTimeout(resolve, 50));
      const delay = await firstToken();
      await long;
      return delay;
    },
    alone: firstToken,
  });
  const forms = await interleave(Math.ceil(plan.rounds / 3), {
    'held to a schema': () => cpuPerToken(() => Promise.all(numbers.map(writeHeld))),
    'any text': () => cpuPerToken(() => Promise.all(numbers.map(write))),
  });
  await serving.close();

  return [
    compare({
      figure: 'P25',
      title: 'CPU of a generated token',
      aim: { atMost: 0.5 },
      by: 'ratio',
      sides: costs,
      sideUnit: 'ms',
    }),
    compare({
      figure: 'P25',
      title: 'CPU of a token held to a schema',
      aim: { atMost: 1.2 },
      by: 'ratio',
      sides: forms,
      sideUnit: 'ms',
    }),
    compare({
      figure: 'P25',
      title: 'first token of an answer beside a prompt of 2,000 tokens',
      aim: { atMost: 100 },
      by: 'difference',
      sides: delays,
      sideUnit: 'ms',
    }),
  ];
}

async function oneByOne(
  numbers: readonly number[],
  write: (i: number) => Promise<number>,
): Promise<number[]> {
  const tokens: number[] = [];
  for (const i of numbers) {
    tokens.push(await write(i));
  }
  return tokens;
}

/** Milliseconds of CPU of the whole process. */
async function cpuPerToken(write: () => Promise<readonly number[]>): Promise<number> {
  const before = process.cpuUsage();
  const tokens = await write();
  const { user, system } = process.cpuUsage(before);
  return (user + system) / 1000 / tokens.reduce((sum, each) => sum + each, 0);
}

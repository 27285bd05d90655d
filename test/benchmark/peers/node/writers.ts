import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { Tokenizer } from '@huggingface/tokenizers';
import { createServing } from 'nestjs-serving';
import { type ModelFiles, textGeneration } from 'nestjs-serving/tasks';
import { modelOfSample } from '../../harness/sample-model.js';
import { folder, miniMind } from '../peers.js';
import { loadTransformers } from './transformers-js.js';

const questions = [
  '中国的首都是哪里？',
  '讲一个关于猫的故事',
  '为什么天空是蓝色的？',
  '你是谁？',
  '写一首关于春天的诗',
  '什么是人工智能？',
  '怎样学习英语？',
  '介绍一下长城',
];
const system = 'You are a helpful assistant';

interface Question {
  readonly prompt: string;
  /** Most tokens of its answer. */
  readonly most: number;
}

/** Their answers have up to 20 to 200 tokens. */
const all: readonly Question[] = Array.from({ length: 32 }, (_, i) => ({
  prompt: questions[i % questions.length]!,
  most: 20 + ((i * 67) % 181),
}));

/** Answers all of them, `count` at a time; returns the answers' tokens. */
type Writer = (asked: readonly Question[]) => Promise<number>;

/** Each with one thread. */
const writers: Record<string, () => Promise<Writer>> = {
  serving: async () => {
    const serving = createServing(
      textGeneration({
        name: 'writer',
        batchSize: count,
        model: {
          from: miniMind,
          file: `gqa-${weights}.onnx`,
          session: { intraOpNumThreads: 1, logSeverityLevel: 3 },
        },
      }),
    );
    await serving.start();
    return async (asked) => {
      const replies = await Promise.all(
        asked.map(({ prompt, most }) =>
          serving.batchedRun({ messages: messagesOf(prompt), maxTokens: most }),
        ),
      );
      return sum(replies.map(({ usage }) => usage!.completionTokens));
    };
  },

  llama: async () => {
    const path = join(folder, 'llama.cpp/node_modules/node-llama-cpp/dist/index.js');
    const { getLlama } = (await import(pathToFileURL(path).href)) as Llama;
    const llama = await getLlama({ gpu: false, build: 'never', logLevel: 'error', maxThreads: 1 });
    const model = await llama.loadModel({
      modelPath: join(miniMind, `llama-${weights}.gguf`),
      gpuLayers: 0,
    });
    const context = await model.createContext({
      sequences: count,
      contextSize: 512,
      batchSize: 512,
      threads: 1,
    });
    const tokenizer = new Tokenizer(read('tokenizer.json'), read('tokenizer_config.json'));
    const sequences = Array.from({ length: count }, () => context.getSequence());
    const write = async ({ prompt, most }: Question, at: number): Promise<number> => {
      const sequence = sequences[at]!;
      const turns = messagesOf(prompt).map(
        ({ role, content }) => `<|im_start|>${role}\n${content}<|im_end|>\n`,
      );
      const { ids } = tokenizer.encode(`${turns.join('')}<|im_start|>assistant\n`);
      let tokens = 0;
      for await (const token of sequence.evaluate(ids, { temperature: 0, yieldEogToken: true })) {
        tokens++;
        if (tokens === most || model.isEogToken(token)) {
          break;
        }
      }
      await sequence.clearHistory();
      return tokens;
    };
    return async (asked) => {
      const waiting = asked.values();
      const inTurn = async (_: unknown, at: number): Promise<number> => {
        let tokens = 0;
        for (const question of waiting) {
          tokens += await write(question, at);
        }
        return tokens;
      };
      return sum(await Promise.all(sequences.map(inTurn)));
    };
  },

  transformers: async () => {
    const file = join(miniMind, 'onnx/model.onnx');
    if (!existsSync(file)) {
      const files = await modelOfSample<ModelFiles>('writers', '04-token-stream', 'readModel');
      mkdirSync(join(miniMind, 'onnx'), { recursive: true });
      writeFileSync(file, files!['model.onnx'] as Uint8Array);
    }
    const { pipeline, TextStreamer } = loadTransformers(join(miniMind, '..')) as Transformers;
    const generate = await pipeline('text-generation', 'minimind2-small', {
      dtype: 'fp32',
      session_options: { intraOpNumThreads: 1, logSeverityLevel: 3 },
    });
    return async (asked) => {
      let tokens = 0;
      for (const { prompt, most } of asked) {
        const streamer = new TextStreamer(generate.tokenizer, {
          skip_prompt: true,
          token_callback_function: () => tokens++,
          callback_function: () => undefined,
        });
        await generate(messagesOf(prompt), { max_new_tokens: most, do_sample: false, streamer });
      }
      return tokens;
    };
  },
};

const [, , name = '', weights = '', places = ''] = process.argv;
const count = Number(places);
const write = await writers[name]!();
await write(all.slice(0, count));
const [begin, cpu] = [performance.now(), process.cpuUsage()];
const tokens = await write(all);
const seconds = (performance.now() - begin) / 1000;
const { user, system: kernel } = process.cpuUsage(cpu);
console.log(JSON.stringify({ tokens, seconds, cpu: (user + kernel) / 1e6 }));
process.exit();

function read(file: string): object {
  return JSON.parse(readFileSync(join(miniMind, file), 'utf8')) as object;
}

function messagesOf(prompt: string) {
  return [
    { role: 'system', content: system },
    { role: 'user', content: prompt },
  ];
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((total, each) => total + each, 0);
}

/** This script calls these functions of `node-llama-cpp`, which it finds in the folder of peers. */
interface Llama {
  readonly getLlama: (options: object) => Promise<{
    loadModel(options: object): Promise<{
      isEogToken(token: number): boolean;
      createContext(options: object): Promise<{
        getSequence(): {
          evaluate(tokens: readonly number[], options: object): AsyncIterable<number>;
          clearHistory(): Promise<void>;
        };
      }>;
    }>;
  }>;
}

interface Transformers {
  readonly pipeline: (task: string, model: string, options: object) => Promise<Generator>;
  readonly TextStreamer: new (tokenizer: unknown, options: object) => object;
}
interface Generator {
  readonly tokenizer: unknown;
  (messages: readonly object[], options: object): Promise<unknown>;
}

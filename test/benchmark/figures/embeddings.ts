import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { Tokenizer } from '@huggingface/tokenizers';
import { createServing, Tensor } from 'nestjs-serving';
import { textEmbedding } from 'nestjs-serving/tasks';
import { InferenceSession } from 'onnxruntime-node';
import { readFileSync } from 'node:fs';
import { compare, type Measurement } from '../harness/measurement.js';
import type { Plan } from '../harness/plan.js';
import { interleave } from '../harness/rounds.js';
import { modelOfSample } from '../harness/sample-model.js';
import { textOf } from '../models/texts.js';

const callers = 128;
const maxTokens = 256;
/** Tokens of a batch, padding included, as the task has them by default. */
const tokensOfBatch = 512;

/** What a side has done in a round. */
interface Load {
  /** Milliseconds of CPU of the whole process for a text. */
  readonly cpu: number;
  /** Texts a second. */
  readonly rate: number;
}

type Side = readonly [name: string, loads: readonly Load[]];

/** The tokens of a text. */
type Row = readonly number[];

/**
 * P24: the CPU time and the rate of text embeddings, of texts of mixed length. Needs the model of
 * the semantic search sample; left out where it can't be fetched.
 */
export async function embeddings(plan: Plan): Promise<Measurement[]> {
  const folder = await modelOfSample<string>('P24', '02-semantic-search', 'fetchModel');
  if (folder === undefined) {
    return [];
  }
  const all = Array.from({ length: Math.ceil(plan.seconds * 2000) }, (_, i) => textOf(i));
  const texts = all.slice(0, all.length / 5);
  const options = { model: folder, pooling: 'mean', maxTokens, tooLong: 'cut' } as const;
  const serving = createServing(textEmbedding({ name: 'texts', ...options }));
  const ofLists = createServing(textEmbedding({ name: 'lists', ...options, partitions: 2 }));
  await serving.start();
  await ofLists.start();
  const model = await Model.open(folder);

  const sides = {
    [`task, ${callers} callers`]: () =>
      measured(texts, (own) => byCallers(own, (text) => serving.batchedRun(text))),
    'bare session, one by one': () =>
      measured(texts, (own) => model.run(rowsOf(own, model).map((row) => [row]))),
    'task, two partitions': () =>
      measured(all, (own) => Promise.all(own.map((text) => ofLists.batchedRun(text)))),
    'bare session, sorted and full': () =>
      measured(all, (own) => model.run(sorted(rowsOf(own, model)))),
    'bare session, as they come': () =>
      measured(texts, (own) => model.run(chunks(rowsOf(own, model), 32))),
  };
  const loads = await interleave(Math.ceil(plan.rounds / 3), sides);
  await serving.close();
  await ofLists.close();
  await model.close();

  const [task, one, bulk, best, naive] = Object.entries<Load[]>(loads);
  const of = (value: keyof Load, ...chosen: readonly (Side | undefined)[]) =>
    Object.fromEntries(
      chosen.map((side) => side!).map(([name, each]) => [name, each.map((load) => load[value])]),
    );
  const title = 'texts of mixed length';
  return [
    compare({
      figure: 'P24',
      title: `CPU of an embedding, ${title}`,
      aim: { atMost: 0.9 },
      by: 'ratio',
      sides: of('cpu', task, one, naive),
      sideUnit: 'ms',
    }),
    compare({
      figure: 'P24',
      title: `embeddings/s of a list, ${title}`,
      aim: { atLeast: 0.95 },
      by: 'ratio',
      sides: of('rate', bulk, best),
      sideUnit: 'texts/s',
    }),
  ];
}

async function measured(
  texts: readonly string[],
  run: (texts: readonly string[]) => Promise<unknown>,
): Promise<Load> {
  const [start, cpu] = [performance.now(), process.cpuUsage()];
  await run(texts);
  const { user, system } = process.cpuUsage(cpu);
  const seconds = (performance.now() - start) / 1000;
  return { cpu: (user + system) / 1000 / texts.length, rate: texts.length / seconds };
}

/** Each caller sends the next text as soon as it has its reply. */
async function byCallers(
  texts: readonly string[],
  call: (text: string) => Promise<unknown>,
): Promise<void> {
  const waiting = texts.values();
  await Promise.all(
    Array.from({ length: callers }, async () => {
      for (let next = waiting.next(); !next.done; next = waiting.next()) {
        await call(next.value);
      }
    }),
  );
}

/** What one writes by hand: the session and the tokenizer, with as many threads as the task's. */
class Model {
  private constructor(
    private readonly session: InferenceSession,
    private readonly tokenizer: Tokenizer,
  ) {}

  static async open(folder: string): Promise<Model> {
    const read = (name: string): object =>
      JSON.parse(readFileSync(join(folder, name), 'utf8')) as object;
    const session = await InferenceSession.create(join(folder, 'model.onnx'), {
      intraOpNumThreads: Math.max(Math.min(availableParallelism(), 2), availableParallelism() - 1),
    });
    return new Model(session, new Tokenizer(read('tokenizer.json'), read('tokenizer_config.json')));
  }

  tokensOf(text: string): Row {
    const { ids } = this.tokenizer.encode(text);
    return ids.length > maxTokens ? [...ids.slice(0, maxTokens - 1), ids.at(-1)!] : ids;
  }

  /** Runs one batch after another, and pools each text. */
  async run(batches: readonly (readonly Row[])[]): Promise<void> {
    for (const rows of batches) {
      const length = Math.max(...rows.map((row) => row.length));
      const tensorOf = (value: (row: Row, at: number) => number) =>
        new Tensor(
          'int64',
          BigInt64Array.from(
            rows.flatMap((row) => Array.from({ length }, (_, at) => value(row, at))),
            BigInt,
          ),
          [rows.length, length],
        );
      const { last_hidden_state: hidden } = await this.session.run({
        input_ids: tensorOf((row, at) => row[at] ?? 0),
        attention_mask: tensorOf((row, at) => Number(at < row.length)),
        token_type_ids: tensorOf(() => 0),
      });
      const values = hidden!.data as Float32Array;
      const width = hidden!.dims[2]!;
      rows.forEach((row, i) => meanOf(values.subarray(i * length * width), row.length, width));
    }
  }

  close(): Promise<void> {
    return this.session.release();
  }
}

function meanOf(values: Float32Array, tokens: number, width: number): Float32Array {
  const mean = new Float32Array(width);
  for (let at = 0; at < tokens * width; at++) {
    mean[at % width]! += values[at]! / tokens;
  }
  return mean;
}

/** Batches of texts of similar length, as full as the tokens of a batch allow. */
function sorted(rows: readonly Row[]): Row[][] {
  const batches: Row[][] = [];
  for (const row of rows.toSorted((one, other) => one.length - other.length)) {
    const last = batches.at(-1);
    if (last && (last.length + 1) * row.length <= tokensOfBatch) {
      last.push(row);
    } else {
      batches.push([row]);
    }
  }
  return batches;
}

function chunks(rows: readonly Row[], size: number): (readonly Row[])[] {
  return Array.from({ length: Math.ceil(rows.length / size) }, (_, i) =>
    rows.slice(i * size, (i + 1) * size),
  );
}

function rowsOf(texts: readonly string[], model: Model): Row[] {
  return texts.map((text) => model.tokensOf(text));
}

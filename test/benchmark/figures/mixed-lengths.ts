import {
  Batch,
  createServing,
  type LocalServing,
  type ServingOptions,
  Tensor,
} from 'nestjs-serving';
import { mapValues } from '../harness/map-values.js';
import { compare, type Measurement } from '../harness/measurement.js';
import type { Plan } from '../harness/plan.js';
import { interleave } from '../harness/rounds.js';
import { quantile } from '../harness/statistics.js';
import { batchSize, session } from '../models/model.js';
import { textEncoder } from '../models/text-encoder.js';
import { randomFloats } from '../models/weights.js';

const callers = 64;
const [median, sigma, shortest, longest] = [20, 0.9, 3, 512];
const buckets = [8, 16, 32, 64, 128, 256, longest];

type Text = Record<'input_ids' | 'attention_mask', Tensor>;

const cost = { of: ({ input_ids: { dims } }: Text) => dims[1]!, most: 512, padded: true };

/** What a side has done in a round. */
interface Load {
  /** Rows a second. */
  readonly rate: number;
  /** Milliseconds of a call, the slowest of a hundred. */
  readonly p99: number;
}

/** P20: what is gained where rows of similar length share a batch. */
export async function mixedLengths(plan: Plan): Promise<Measurement[]> {
  const texts = lengthsOf(Math.ceil(plan.seconds * 500)).map(textOf);
  const servings = {
    similar: serving({
      batchSize: { rows: batchSize, cost: { ...cost, similar: { overtaking: 16 } } },
    }),
    'first come': serving({}),
    'first come, same budget': serving({ batchSize: { rows: batchSize, cost } }),
    'keys by length': serving({
      batchKeys: buckets.map(String),
      preprocess(text: unknown) {
        const bucket = bucketOf(lengthIn(text as Text));
        const padded = mapValues(text as Text, (tensor) => paddedTo(tensor, bucket));
        return { batch: Batch.concatenate([padded]).withKey(String(bucket)) };
      },
    }),
  };
  await Promise.all(Object.values(servings).map((each) => each.start()));
  printHistogram(texts);

  const loads = await interleave(
    Math.ceil(plan.rounds / 3),
    mapValues(servings, (each) => () => run(each, texts)),
  );
  const padding: Record<string, number[]> = {};
  for (const [name, each] of Object.entries(servings)) {
    const widthOf = name === 'keys by length' ? bucketOf : (width: number) => width;
    padding[name] = [await paddingOf(each, texts, widthOf)];
  }
  await Promise.all(Object.values(servings).map((each) => each.close()));

  const title = `texts of mixed length, ${callers} callers`;
  const sidesOf = (value: (load: Load) => number): Record<string, number[]> =>
    mapValues(loads, (rounds) => rounds.map(value));
  return [
    compare({
      figure: 'P20',
      title: `rows/s, ${title}`,
      aim: { atLeast: 2 },
      by: 'ratio',
      sides: sidesOf(({ rate }) => rate),
      sideUnit: 'rows/s',
    }),
    compare({
      figure: 'P20',
      title: `p99, ${title}`,
      aim: { atMost: 1 },
      by: 'ratio',
      sides: sidesOf(({ p99 }) => p99),
      sideUnit: 'ms',
    }),
    compare({
      figure: 'P20',
      title: `padding, ${title}`,
      better: 'lower',
      by: 'ratio',
      sides: padding,
      sideUnit: '% of the tokens',
    }),
  ];
}

/** A serving of the encoder whose rows may differ in length. */
function serving(options: Partial<ServingOptions>): LocalServing {
  const variable = { variableAxis: 1 };
  return createServing<unknown, unknown, unknown, unknown>({
    name: 'texts',
    batchSize,
    model: {
      file: textEncoder,
      session,
      inputs: { input_ids: variable, attention_mask: variable },
      outputs: { last_hidden_state: variable },
    },
    ...options,
  });
}

/** Each caller sends the next text as soon as it has its reply. */
async function run(each: LocalServing, texts: readonly Text[]): Promise<Load> {
  const latencies: number[] = [];
  const waiting = texts.values();
  const start = performance.now();
  await Promise.all(
    Array.from({ length: callers }, async () => {
      for (let next = waiting.next(); !next.done; next = waiting.next()) {
        const asked = performance.now();
        await each.batchedRun(next.value);
        latencies.push(performance.now() - asked);
      }
    }),
  );
  const rate = (texts.length / (performance.now() - start)) * 1000;
  return { rate, p99: quantile(Float64Array.from(latencies).toSorted(), 0.99) };
}

/** The share of padding in the tokens that the model runs, in percent. */
async function paddingOf(
  each: LocalServing,
  texts: readonly Text[],
  /** The length that rows run with whose longest has this one. */
  widthOf: (longest: number) => number,
): Promise<number> {
  const lengths: number[] = [];
  let [padded, tokens] = [0, 0];
  let calls = 0;
  const starts = each.eventsOf('call:start').subscribe(({ call }) => {
    lengths[call] = lengthIn(texts[calls++]!);
  });
  const ends = each.eventsOf('batch:end').subscribe(({ calls: observed }) => {
    const own = observed.map((call) => lengths[call]!);
    padded += own.length * widthOf(Math.max(...own));
    tokens += own.reduce((sum, length) => sum + length, 0);
  });
  await run(each, texts);
  starts.unsubscribe();
  ends.unsubscribe();
  return 100 * (1 - tokens / padded);
}

/** Log-normal lengths, the same at every run. */
function lengthsOf(count: number): number[] {
  const uniform = randomFloats(2 * count, 0.5).map((value) => value + 0.5);
  return Array.from({ length: count }, (_, index) => {
    const [u = 0, v = 0] = uniform.subarray(2 * index);
    const normal = Math.sqrt(-2 * Math.log(1 - u)) * Math.cos(2 * Math.PI * v);
    const length = Math.round(median * Math.exp(sigma * normal));
    return Math.min(longest, Math.max(shortest, length));
  });
}

function textOf(length: number): Text {
  const ids = BigInt64Array.from({ length }, (_, token) => BigInt((token * 37 + length) % 1000));
  return {
    input_ids: new Tensor('int64', ids, [1, length]),
    attention_mask: new Tensor('int64', new BigInt64Array(length).fill(1n), [1, length]),
  };
}

function bucketOf(length: number): number {
  return buckets.find((bucket) => length <= bucket)!;
}

/** The row with zeros at its end. */
function paddedTo(row: Tensor, length: number): Tensor {
  const data = new BigInt64Array(length);
  data.set(row.data as BigInt64Array);
  return new Tensor('int64', data, [1, length]);
}

function lengthIn({ input_ids: { dims } }: Text): number {
  return dims[1]!;
}

function printHistogram(texts: readonly Text[]): void {
  const bounds = [4, 8, 16, 32, 64, 128, 256, longest];
  const lengths = texts.map(lengthIn);
  const shares = bounds.map((bound, index) => {
    const least = bounds[index - 1] ?? 0;
    const rows = lengths.filter((length) => length > least && length <= bound).length;
    return `${least + 1} to ${bound}: ${Math.round((100 * rows) / lengths.length)} %`;
  });
  const mean = lengths.reduce((sum, length) => sum + length, 0) / lengths.length;
  console.error(`tokens of ${lengths.length} texts, ${mean.toFixed(1)} on average`);
  console.error(`  ${shares.join(', ')}`);
}

import { ServingError } from '../../../index.js';
import { messageOf } from '../../../doors/text.js';
import {
  closedLoop,
  answeredPerSecond,
  isGeneratorLate,
  LATE,
  loadAsJson,
  type LoadResult,
  openLoop,
  percentile,
} from '../load/open-loop.js';
import { type GivenShapes, type SampledInput, sampleRows } from '../load/sample-rows.js';
import { type CliOutput, shortNumber, tableOf, ProgressBar } from '../output.js';
import { ProtocolClient } from './protocol-client.js';

/** Times are in milliseconds. */
export interface BenchOptions {
  readonly model: string;
  readonly modelVersion?: string;
  readonly rates?: readonly number[];
  readonly duration: number;
  readonly rows: number;
  /** Text or JSON. */
  readonly input?: string;
  readonly connections: number;
  readonly shape?: GivenShapes;
  readonly header?: Readonly<Record<string, string>>;
  readonly json?: boolean;
}

/** Shares of the most answers per second. */
const SHARES = [0.1, 0.25, 0.5, 0.75, 0.9, 1, 1.2];

/** `nestjs-serving bench http://localhost:3000 --model digits` */
export async function bench(url: string, options: BenchOptions, out: CliOutput): Promise<void> {
  const { model, rows, input, connections, shape = {}, header = {}, json = false } = options;
  const version = options.modelVersion;
  const client = new ProtocolClient({ url, model, version, headers: header, connections });
  try {
    const inputs = await client.inputs();
    checkInput(model, inputs, input);
    const call = client.call(sampleRows(inputs, rows, shape, input));
    await call().catch((error: unknown) => {
      throw input === undefined && takesTexts(inputs) ? withoutInput(model, error) : error;
    });
    const duration = options.duration / 1000;
    const most = options.rates ? undefined : await closedLoop(call, connections, duration / 2);
    const rates = options.rates ?? SHARES.map((share) => share * most!);
    const bar = new ProgressBar(rates.length, out.hasProgress && !json);
    const results: LoadResult[] = [];
    for (const rate of rates) {
      bar.step(`${shortNumber(rate)} calls/s`);
      results.push(await openLoop({ rate, duration, call, mostOutstanding: 10_000 }));
    }
    bar.end();
    out.print(
      json
        ? JSON.stringify({ most, loads: results.map(loadAsJson) }, undefined, 2)
        : asText(results, most, connections),
    );
    failIfNone(results);
  } finally {
    client.close();
  }
}

/** Includes servings with `preprocess`, whose JSON rows are texts. */
function takesTexts(inputs: readonly SampledInput[]): boolean {
  return inputs.length === 1 && inputs[0]!.type === 'string';
}

/** @throws ServingError for an `--input` if the model takes no texts */
function checkInput(
  model: string,
  inputs: readonly SampledInput[],
  input: string | undefined,
): void {
  if (input !== undefined && !takesTexts(inputs)) {
    const types = inputs.map(({ name, type }) => `${name}: ${type}`).join(', ');
    throw new ServingError(
      `--input is for a model whose one input is BYTES: texts, or rows in JSON. "${model}" takes ` +
        `[${types}], of which bench makes tensors up; leave --input out`,
    );
  }
}

function withoutInput(model: string, cause: unknown): ServingError {
  return new ServingError(
    `"${model}" does not take the text that bench makes up; give it a row, for a serving with ` +
      `preprocess in JSON: --input '[1, 2]', or --input @row.json for a file. ${messageOf(cause)}`,
    { cause },
  );
}

function asText(
  results: readonly LoadResult[],
  most: number | undefined,
  connections: number,
): string {
  const header = ['calls/s', 'answered/s', 'p50 ms', 'p90 ms', 'p99 ms', 'p99.9 ms', 'most ms'];
  const rows = results.map((result) => [
    shortNumber(result.rate),
    shortNumber(answeredPerSecond(result)),
    ...[50, 90, 99, 99.9, 100].map((share) => shortNumber(percentile(result, share))),
    ...[result.refused, result.failed, result.unsent].map(String),
    isGeneratorLate(result) ? '(late)' : '',
  ]);
  return [
    ...(most === undefined
      ? []
      : [
          `${connections} callers that wait for their answer get ${shortNumber(most)} answers/s.`,
          '',
        ]),
    'Latency of calls that come at random times, whatever was answered before:',
    '',
    tableOf([...header, 'refused', 'failed', 'unsent', ''], rows),
    ...(results.some(isGeneratorLate) ? ['', LATE] : []),
  ].join('\n');
}

function failIfNone(results: readonly LoadResult[]): void {
  const failed = results.find(({ error }) => error !== undefined);
  if (failed && results.every(({ answered }) => answered === 0)) {
    throw new ServingError(`No call was answered: ${messageOf(failed.error)}`, {
      cause: failed.error,
    });
  }
}

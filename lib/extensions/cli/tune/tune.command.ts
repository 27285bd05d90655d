import { availableParallelism } from 'node:os';
import { Logger, type LoggerService } from '@nestjs/common';
import { createServing, ServingError } from '../../../index.js';
import { literalOf } from '../../../doors/text.js';
import { type Inspection, inspectModel } from '../inspect/inspection.js';
import { axesText, identifier } from '../inspect/inspect.command.js';
import {
  closedLoop,
  isGeneratorLate,
  LATE,
  loadAsJson,
  type LoadResult,
  openLoop,
  percentile,
} from '../load/open-loop.js';
import { type GivenShapes, sampleRows } from '../load/sample-rows.js';
import { type CliOutput, ProgressBar, shortNumber, tableOf } from '../output.js';
import {
  keepsTarget,
  rateOf,
  recommended,
  searchBranch,
  type Subject,
  type Trial,
} from './search.js';

/** Times are in milliseconds. */
export interface TuneOptions {
  readonly target: number;
  readonly duration: number;
  readonly rows: number;
  readonly batchSizes: readonly number[];
  readonly partitions?: readonly number[];
  readonly threads?: readonly number[];
  readonly shape?: GivenShapes;
  readonly json?: boolean;
}

const REPEATS = 3;

/** `nestjs-serving tune model.onnx --target 50ms` */
export async function tune(path: string, options: TuneOptions, out: CliOutput): Promise<void> {
  const { target, rows, shape = {}, json = false } = options;
  const inspection = inspectModel(path);
  const log = new OnceLog(out);
  inspection.warnings.forEach((warning) => log.warn(warning));
  Logger.overrideLogger(log);
  const measuring = { rows, duration: options.duration / 1000, shapes: shape };
  const branches = branchesFor(availableParallelism(), options.batchSizes, options);
  const settings = branches.flat();
  const bar = new ProgressBar(settings.length * 4, out.hasProgress && !json);
  const open = (setting: Setting) => openModelSubject(inspection, setting, measuring);
  const trials: Trial[] = [];
  for (const branch of branches) {
    const onLoad = (setting: Setting): void => bar.step(describeSetting(setting));
    trials.push(...(await searchBranch(branch, open, target, onLoad)));
  }
  const best = recommended(trials);
  const repeats = best ? await repeated(best, open, bar) : [];
  bar.end();
  const definition = best && tunedDefinition(definitionOf(inspection, best.setting));
  out.print(
    json
      ? JSON.stringify(asJson(trials, best, repeats, target, definition), undefined, 2)
      : asText(trials, best, repeats, target, definition, out),
  );
  if (!best) {
    throw new ServingError(
      `No setting answers 99 of 100 calls in ${target} ms; give a longer --target, or fewer --rows`,
    );
  }
}

/** Writes warnings once: all settings have the same. */
class OnceLog implements LoggerService {
  private readonly written = new Set<string>();

  constructor(private readonly out: CliOutput) {}

  log(): void {}

  warn(message: unknown): void {
    const text = String(message).replace(/^The model of serving ".*?" /, 'The model ');
    if (!this.written.has(text)) {
      this.written.add(text);
      this.out.note(`${this.out.styled('yellow', 'warning')} ${text}`);
    }
  }

  error(message: unknown): void {
    this.warn(message);
  }
}

/** Shows the spread at the best rate. */
async function repeated(
  { setting, best }: Trial,
  open: (setting: Setting) => ReturnType<typeof openModelSubject>,
  bar: ProgressBar,
): Promise<readonly LoadResult[]> {
  const subject = await open(setting);
  try {
    await subject.capacity();
    const results: LoadResult[] = [];
    for (let i = 0; i < REPEATS; i++) {
      bar.step(`again: ${describeSetting(setting)}`);
      results.push(await subject.load(best!.rate));
    }
    return results;
  } finally {
    await subject.close();
  }
}

function asText(
  trials: readonly Trial[],
  best: Trial | undefined,
  repeats: readonly LoadResult[],
  target: number,
  definition: string | undefined,
  out: CliOutput,
): string {
  const header = [
    'partitions',
    'threads',
    'batchSize',
    'calls/s',
    'p50 ms',
    'p99 ms',
    'most calls/s',
    '',
  ];
  const rows = trials.map((trial) => {
    const { setting, capacity, best: load } = trial;
    const figures = load
      ? [rateOf(trial), percentile(load, 50), percentile(load, 99)].map(shortNumber)
      : ['-', '-', '-'];
    const mark = trial === best ? 'recommended' : load && isGeneratorLate(load) ? '(late)' : '';
    return [
      ...[setting.partitions, setting.threads, setting.batchSize].map(String),
      ...figures,
      shortNumber(capacity),
      mark,
    ];
  });
  const lines = [
    `Calls per second of which 99 of 100 are answered in ${target} ms, and the most without a limit:`,
    '',
    tableOf(header, rows),
  ];
  if (trials.some(({ best: load }) => load && isGeneratorLate(load))) {
    lines.push('', LATE);
  }
  if (!best || definition === undefined) {
    return lines.join('\n');
  }
  const p99 = repeats.map((result) => percentile(result, 99)).toSorted((a, b) => a - b);
  const kept = repeats.filter((result) => keepsTarget(result, target)).length;
  return [
    ...lines,
    '',
    `Again at ${shortNumber(best.best!.rate)} calls/s: p99 ${shortNumber(p99[0]!)} to ` +
      `${shortNumber(p99.at(-1)!)} ms, ${kept} of ${repeats.length} runs in time.`,
    '',
    out.styled('bold', 'The smallest setting within 5 % of the fastest'),
    '',
    definition,
  ].join('\n');
}

function asJson(
  trials: readonly Trial[],
  best: Trial | undefined,
  repeats: readonly LoadResult[],
  target: number,
  definition: string | undefined,
): object {
  return {
    target,
    trials: trials.map(({ setting, capacity, loads, best: load }) => ({
      ...setting,
      capacity,
      best: load && loadAsJson(load),
      loads: loads.map(loadAsJson),
    })),
    recommended: best && { ...best.setting, repeats: repeats.map(loadAsJson), definition },
  };
}

function tunedDefinition({
  name,
  model: { file, session, inputs, outputs },
  partitions,
  batchSize,
}: ReturnType<typeof definitionOf>): string {
  return [
    `export const ${identifier(name)} = defineServing({`,
    `  name: ${literalOf(name)},`,
    '  model: {',
    `    file: ${literalOf(file)},`,
    `    session: { intraOpNumThreads: ${session.intraOpNumThreads}, interOpNumThreads: 1 },`,
    ...axesText(inputs, outputs),
    '  },',
    `  partitions: ${partitions},`,
    `  batchSize: ${batchSize},`,
    '});',
  ].join('\n');
}

export interface Setting {
  readonly partitions: number;
  /** `intraOpNumThreads` */
  readonly threads: number;
  readonly batchSize: number;
}

/** Ascending by batch size. */
export type Branch = readonly Setting[];

/** Goes from one session on all cores to one per core by default, by powers of two. */
export function branchesFor(
  cores: number,
  sizes: readonly number[],
  only: { readonly partitions?: readonly number[]; readonly threads?: readonly number[] } = {},
): readonly Branch[] {
  const partitionCounts = only.partitions ?? powersOfTwo(cores);
  return partitionCounts.flatMap((partitions) =>
    (only.threads ?? [Math.max(1, Math.floor(cores / partitions))]).map((threads) =>
      sizes.toSorted((a, b) => a - b).map((batchSize) => ({ partitions, threads, batchSize })),
    ),
  );
}

/** 1, 2, 4 and so on, and `most`. */
export function powersOfTwo(most: number): number[] {
  const powers: number[] = [];
  for (let power = 1; power < most; power *= 2) {
    powers.push(power);
  }
  return [...powers, most];
}

export function describeSetting({ partitions, threads, batchSize }: Setting): string {
  return `${partitions} × ${threads} threads, batches of ${batchSize}`;
}

export interface Measuring {
  readonly rows: number;
  /** Seconds per load. */
  readonly duration: number;
  readonly shapes: GivenShapes;
}

export function definitionOf({ path, name, declared }: Inspection, setting: Setting) {
  const { partitions, threads, batchSize } = setting;
  const session = { intraOpNumThreads: threads, interOpNumThreads: 1 };
  const { inputs, outputs } = declared;
  return { name, model: { file: path, session, inputs, outputs }, partitions, batchSize };
}

export async function openModelSubject(
  inspection: Inspection,
  setting: Setting,
  { rows, duration, shapes }: Measuring,
): Promise<Subject> {
  const serving = createServing(definitionOf(inspection, setting));
  await serving.start();
  const ports = serving.signature!.inputs;
  const input = sampleRows(ports, rows, shapes);
  const call = (): Promise<unknown> => serving.batchedRun(input);
  // Fills batches on all partitions, and as many waiting.
  const callers = Math.ceil((2 * setting.batchSize * setting.partitions) / rows) + 1;
  return {
    async capacity() {
      // Warms up.
      await closedLoop(call, callers, duration / 4);
      return closedLoop(call, callers, duration / 2);
    },
    load: (rate) => openLoop({ rate, duration, call, mostOutstanding: 10_000 }),
    close: () => serving.close(),
  };
}

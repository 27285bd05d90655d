import { Batch } from '../batch/batch.js';
import { FlatContainer } from '../batch/container.js';
import {
  elementAt,
  float16OfNumber,
  storageClasses,
  Tensor,
  type TensorData,
  zerosOf,
} from '../batch/tensor.js';
import { InvalidOutputError, InvalidServingError, isA, messageOf } from '../errors.js';
import { formatValue, propertyOf } from '../format.js';
import {
  axesOf,
  describePort,
  hasRows,
  isUnnamed,
  type ModelPort,
  type ModelSignature,
} from '../partitions/model/model-signature.js';
import { variableAxesOf } from '../partitions/model/variable-axes.js';
import type { ResolvedServing } from '../definition/resolved-serving.js';
import type { BatchRunner } from './batch-run.js';
import { type Intake, OF_NO_CALL } from './intake.js';
import { ReplyRequest } from './request.js';

/** Each continues "The model of serving ...". */
export interface RowFindings {
  readonly alone?: string;
  readonly apart?: string;
  readonly unchecked?: string;
}

/**
 * Checks that a model gives each row the same answer alone and in a batch: two rows run alone, then
 * together, the second one shorter if lengths vary. The rows are examples of `warmUp`, or made up.
 *
 * @throws InvalidServingError if a row's answer depends on other rows, or on padding
 */
export class RowCheck {
  private readonly inputs: readonly ModelPort[];
  private readonly guessed: ModelPort | undefined;

  constructor(
    private readonly options: ResolvedServing,
    private readonly signature: ModelSignature,
    private readonly runner: BatchRunner,
    private readonly intake: Intake,
    /** True if the definition, not the model's files, has the axes where lengths vary. */
    private readonly declaresLengths: boolean,
  ) {
    this.inputs = signature.inputs;
    this.guessed = signature.outputs.find(
      ({ name, isGuessed }) => isGuessed && signature.fetches.includes(name),
    );
  }

  async run(examples: readonly Batch[]): Promise<RowFindings> {
    const { signature, options } = this;
    if (!options.checkRows || !hasRows(this.inputs)) {
      return this.without('the check is switched off (checkRows: false)', {});
    }
    const [example] = examples;
    const row = example ?? madeRow(this.inputs, 1);
    if (typeof row === 'string') {
      return this.without(row, { unchecked: uncheckedFor(row) });
    }
    const other =
      (example
        ? (reshuffled(example, this.inputs) ?? remade(example, this.inputs))
        : this.made(2)) ?? row;
    const short = this.shortened(other) ?? other;
    let alone: readonly Answer[];
    try {
      alone = [await this.answerOf(row), await this.answerOf(short)];
      await this.tryFurther(example ? 0 : FURTHER_ROWS);
    } catch (cause) {
      if (isA(cause, InvalidOutputError)) {
        throw new InvalidServingError(cause.message, { cause });
      }
      const reason = `a row ${example ? 'of warmUp' : 'that we made up'} fails: ${messageOf(cause)}`;
      return this.without(reason, example ? {} : { unchecked: uncheckedFor(reason) });
    }
    if (this.mostRows(row) < 2 || signature.fixedBatch === 1) {
      return {};
    }
    return this.compare({ row, other, short }, alone);
  }

  private async tryFurther(rows: number): Promise<void> {
    for (let seed = 3; this.guessed && seed < 3 + rows; seed++) {
      await this.answerOf(this.made(seed)!);
    }
  }

  private async compare(
    { row, other, short }: Rows,
    alone: readonly Answer[],
  ): Promise<RowFindings> {
    let together: readonly Answer[];
    try {
      together = await this.answersOf(row, short);
    } catch (cause) {
      if (short !== other && (await this.canRun(row, other))) {
        throw new InvalidServingError(
          `Two rows of different lengths cannot share a run of the model: ${messageOf(cause)}`,
          { cause },
        );
      }
      return this.oneByOne(cause);
    }
    const found =
      differenceIn(alone, together) ??
      (short === other ? undefined : await this.paddingRead(row, short));
    if (!found) {
      const hidden = alone.flatMap((answer) => [...answer]).find(([, each]) => !hasFinite(each));
      return hidden
        ? {
            unchecked: uncheckedFor(
              `"${hidden[0]}" has no finite number for a row that runs alone`,
            ),
          }
        : {};
    }
    if (this.signature.dynamicallyQuantised) {
      return {};
    }
    if (differenceIn([alone[0]!], [await this.answerOf(row)])) {
      return {
        unchecked:
          'answers otherwise when the same row runs again, so we could not check whether its answers depend on other rows',
      };
    }
    const equals =
      short === other ? undefined : [await this.answerOf(row), await this.answerOf(other)];
    if (equals && !differenceIn(equals, await this.answersOf(row, other))) {
      if (this.declaresLengths) {
        throw new InvalidServingError(paddingMessage(found, this.inputs));
      }
      return {
        apart:
          `reads the padding of shorter rows (a row has ${found.alone} in "${found.output}" alone, and ` +
          `${found.together} when it is padded): only rows of one length share a batch, so batches ` +
          'are smaller; use a model that takes attention_mask',
      };
    }
    throw new InvalidServingError(mixingMessage(found, this.signature));
  }

  /** A row's largest number hides smaller padding, and its least one larger padding. */
  private async paddingRead(row: Batch, short: Batch): Promise<Difference | undefined> {
    for (const side of [1, -1] as const) {
      const own = beyondPadding(short, this.inputs, side);
      if (own && (await this.canRun(own))) {
        const [, together] = await this.answersOf(row, own);
        const found = differenceIn([await this.answerOf(own)], [together!]);
        if (found) {
          return found;
        }
      }
    }
    return undefined;
  }

  private without(reason: string, findings: RowFindings): RowFindings {
    const { guessed } = this;
    if (guessed && isNamedOtherwise(guessed, this.inputs)) {
      throw new InvalidServingError(
        `Axis ${guessed.batchAxis} of the output ${describePort(guessed)} is not named as the axis ` +
          `that counts the inputs' rows, and ${reason}. Declare it: outputs: { ` +
          `${propertyOf(guessed.name)}: { batchAxis: 0 } } if it counts rows, the number of another ` +
          'axis if that does, or null if none does',
      );
    }
    return findings;
  }

  private oneByOne(cause: unknown): RowFindings {
    const { allowedSizes } = this.options.otherKeys;
    const reason = `cannot run two rows together (${messageOf(cause)})`;
    if (allowedSizes) {
      throw new InvalidServingError(
        `The model ${reason}, and batchSize allows ${allowedSizes.join(', ')} rows; give ` +
          'batchSize: 1, or export the model with a dynamic batch axis',
        { cause },
      );
    }
    return {
      alone:
        `${reason}: it runs one row at a time, so batches gain nothing; export it with a dynamic ` +
        'batch axis',
    };
  }

  private async canRun(...rows: readonly Batch[]): Promise<boolean> {
    return this.answersOf(...rows).then(
      () => true,
      () => false,
    );
  }

  private mostRows(row: Batch): number {
    return this.admitted(row).lane.limits.batchSize;
  }

  private made(seed: number): Batch | undefined {
    const row = madeRow(this.inputs, seed);
    return typeof row === 'string' ? undefined : row;
  }

  /** Undefined if no axis varies. */
  private shortened(row: Batch): Batch | undefined {
    const axes = Object.entries(variableAxesOf(this.inputs));
    const leaf = row.template?.leaves.find(({ path }) => axes.some(([name]) => name === path));
    const [, variable] = axes.find(([name]) => name === leaf?.path) ?? [];
    const length = variable ? leaf!.dims[variable.axis]! : 0;
    const cuts = Object.fromEntries(axes.map(([name, { axis }]) => [name, axis]));
    return length < 2 ? undefined : row.cut(cuts, Math.ceil(length / 2));
  }

  private async answerOf(row: Batch): Promise<Answer> {
    const [answer] = await this.answersOf(row);
    return answer!;
  }

  private async answersOf(...rows: readonly Batch[]): Promise<readonly Answer[]> {
    const requests = rows.map((row) => {
      const { rows: own, lane } = this.admitted(row);
      return new ReplyRequest(own, lane);
    });
    const replies = await this.runner.runTogether(requests, 0);
    return replies.map((reply) => answerIn(reply.rows));
  }

  private admitted(row: Batch) {
    return this.intake.admit(row, OF_NO_CALL);
  }
}

interface Rows {
  readonly row: Batch;
  /** Has the length of `row`. */
  readonly other: Batch;
  /** Shorter than `other` if lengths vary. */
  readonly short: Batch;
}

type Answer = ReadonlyMap<string, Tensor>;

/** Rows to run alone if an axis is only a guess: an output may have one finding by chance. */
const FURTHER_ROWS = 4;

const MOST_ELEMENTS = 2 ** 25;

const MADE_LENGTH = 8;

function uncheckedFor(reason: string): string {
  return (
    `was not checked for answers that depend on other rows of a batch, since ${reason}; give ` +
    'example inputs: warmUp: [...], or switch the check off: checkRows: false'
  );
}

/** Another name of the inputs' rows makes the guess more likely wrong than right. */
function isNamedOtherwise(guessed: ModelPort, inputs: readonly ModelPort[]): boolean {
  return [guessed, inputs.find(({ batchAxis }) => batchAxis !== null)!].every(
    ({ shape, batchAxis }) =>
      typeof shape[batchAxis!] === 'string' && !isUnnamed(shape[batchAxis!]),
  );
}

/** Rows differ by the seed; a text says why there can't be one. */
function madeRow(inputs: readonly ModelPort[], seed: number): Batch | string {
  const tensors: Record<string, Tensor> = {};
  for (const port of inputs) {
    const { name, type, shape, batchAxis, variable } = port;
    const dims = shape.map((dim, axis) =>
      axis === batchAxis ? 1 : axis === variable?.axis ? MADE_LENGTH : dim,
    );
    const open = dims.findIndex((dim) => typeof dim !== 'number');
    if (open >= 0) {
      return `axis ${open} of the input ${describePort(port)} may have any size`;
    }
    const size = (dims as number[]).reduce((product, dim) => product * dim, 1);
    if (size > MOST_ELEMENTS || (type !== 'string' && !storageClasses.has(type))) {
      return `we cannot make up the input ${describePort(port)}`;
    }
    // Rows of a batch share inputs without rows.
    const data = madeData(port, dims as number[], batchAxis === null ? 1 : seed);
    tensors[name] = new Tensor(type, data, dims as number[]);
  }
  return Batch.ofContainer(tensors, axesOf(inputs));
}

function madeData({ name, type }: ModelPort, dims: readonly number[], seed: number): TensorData {
  const data = zerosOf(type, dims);
  // A model that finds things in its input finds nothing in zeros.
  if (seed === 4 || data.length === 0) {
    return data;
  }
  const random = randomFrom(seed);
  const elementFor = elementsOf(type, isMask(name));
  for (let at = 0; at < data.length; at++) {
    data[at] = elementFor(random());
  }
  return data;
}

/** Whole numbers are 1 or 2: few models refuse them. */
function elementsOf(type: Tensor.Type, ofMask: boolean): (fraction: number) => never {
  const element = (fraction: number): number | bigint | string => {
    const whole = ofMask || fraction < 0.5 ? 1 : 2;
    switch (type) {
      case 'string':
        return fraction < 0.5 ? 'a' : 'b';
      case 'bool':
        return ofMask || fraction < 0.5 ? 1 : 0;
      case 'float32':
      case 'float64':
        return ofMask ? 1 : 2 * fraction - 1;
      case 'float16':
        return storageClasses.get(type) === Uint16Array
          ? float16OfNumber(2 * fraction - 1)
          : 2 * fraction - 1;
      case 'int64':
      case 'uint64':
        return BigInt(whole);
      default:
        return whole;
    }
  };
  return element as (fraction: number) => never;
}

/** Linear congruential generator with the constants of Numerical Recipes. */
function randomFrom(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 32;
  };
}

/**
 * Takes every second element of each input, twice and in reverse: elements that the model takes, of
 * another order and sum. Undefined if that changes nothing.
 */
function reshuffled(row: Batch, inputs: readonly ModelPort[]): Batch | undefined {
  return changed(row, inputs, (data) => {
    data.reverse();
    for (let at = 1; at < data.length; at += 2) {
      data.copyWithin(at, at - 1, at);
    }
  });
}

function remade(row: Batch, inputs: readonly ModelPort[]): Batch | undefined {
  return changed(row, inputs, (data, port) =>
    madeData(port, [data.length], 2).forEach((element, at) => (data[at] = element)),
  );
}

/** Exposes a model that reads the padding: moves each number above or below it. */
function beyondPadding(row: Batch, inputs: readonly ModelPort[], side: 1 | -1): Batch | undefined {
  return changed(row, inputs, (data, { name, type, variable }) => {
    const padding = Number(variable?.padWith ?? 0);
    if (variable && isFloats(data, type) && !isMask(name) && Number.isFinite(padding)) {
      data.forEach((element, at) => (data[at] = padding + side * (1 + Math.abs(element))));
    }
  });
}

function isFloats(data: TensorData, type: Tensor.Type): data is Float32Array | Float64Array {
  return type === 'float32' || type === 'float64';
}

const isMask = (name: string): boolean => /mask/i.test(name);

/** Undefined if all elements are as before. */
function changed(
  row: Batch,
  inputs: readonly ModelPort[],
  change: (data: TensorData, port: ModelPort) => void,
): Batch | undefined {
  const rows = row.gather();
  if (!(rows instanceof FlatContainer)) {
    return undefined;
  }
  let isChanged = false;
  const tensors = rows.leaves.map(({ path, tensor }) => {
    const port = inputs.length === 1 ? inputs[0] : inputs.find(({ name }) => name === path);
    if (!port || port.batchAxis === null) {
      return tensor;
    }
    const data = tensor.data.slice() as TensorData;
    change(data, port);
    isChanged ||= data.some((element, at) => element !== tensor.data[at]);
    return new Tensor(tensor.type, data, tensor.dims);
  });
  const batch = isChanged ? Batch.ofContainer(rows.with(tensors), axesOf(inputs)) : undefined;
  return batch?.withKey(row.key);
}

function answerIn(rows: Batch): Answer {
  const output = rows.gather();
  return new Map(
    output instanceof FlatContainer ? output.leaves.map(({ path, tensor }) => [path, tensor]) : [],
  );
}

interface Difference {
  readonly output: string;
  readonly alone: string;
  readonly together: string;
}

function differenceIn(
  alone: readonly Answer[],
  together: readonly Answer[],
): Difference | undefined {
  for (const [row, answer] of alone.entries()) {
    for (const [output, tensor] of answer) {
      const other = together[row]!.get(output)!;
      const found = differenceOf(tensor, other);
      if (found) {
        return { output, ...found };
      }
    }
  }
  return undefined;
}

/**
 * Largest difference that rounding explains, as a share of the answer's largest number. Sums of
 * another order differ by less, also with TensorFloat-32.
 */
const TOLERANCES: Readonly<Record<string, number>> = {
  float32: 1e-2,
  float64: 1e-2,
  float16: 5e-2,
};

function differenceOf(a: Tensor, b: Tensor): Omit<Difference, 'output'> | undefined {
  if (a.dims.join() !== b.dims.join()) {
    return { alone: `the shape [${a.dims.join(', ')}]`, together: `[${b.dims.join(', ')}]` };
  }
  const tolerance = TOLERANCES[a.type];
  const step = Math.ceil(a.size / MOST_COMPARED);
  const largest = tolerance === undefined ? 0 : largestIn(a, step);
  for (let at = 0; at < a.size; at += step) {
    const [one, other] = [elementAt(a, at), elementAt(b, at)];
    const isSame =
      tolerance === undefined
        ? one === other
        : isClose(Number(one), Number(other), tolerance * largest);
    if (!isSame) {
      return { alone: formatValue(one), together: formatValue(other) };
    }
  }
  return undefined;
}

/** Spread evenly over an output. */
const MOST_COMPARED = 2 ** 18;

/** False for floats that are all NaN or infinite. */
function hasFinite(tensor: Tensor): boolean {
  let at = 0;
  while (at < tensor.size && !Number.isFinite(Number(elementAt(tensor, at)))) {
    at++;
  }
  return at < tensor.size || at === 0 || TOLERANCES[tensor.type] === undefined;
}

function largestIn(tensor: Tensor, step: number): number {
  let largest = 0;
  for (let at = 0; at < tensor.size; at += step) {
    const size = Math.abs(Number(elementAt(tensor, at)));
    largest = Number.isFinite(size) ? Math.max(largest, size) : largest;
  }
  return largest;
}

function isClose(a: number, b: number, distance: number): boolean {
  return Object.is(a, b) || Math.abs(a - b) <= distance || (Number.isNaN(a) && Number.isNaN(b));
}

function mixingMessage({ output, alone, together }: Difference, signature: ModelSignature): string {
  const port = signature.outputs.find(({ name }) => name === output);
  const has =
    port?.batchAxis === null
      ? `The output "${output}" has no rows, and depends on all rows of its batch`
      : 'A row of the model has another answer beside other rows';
  const advice =
    port?.batchAxis === null
      ? 'leave it out with fetches, or'
      : 'if the rows of a call belong together,';
  const inputs = signature.inputs.map(({ name }) => `${propertyOf(name)}: { batchAxis: null }`);
  return (
    `${has}: alone it has ${alone} in "${output}", and ${together} in a batch of two. A caller's ` +
    `answer would depend on others; ${advice} declare inputs: { ${inputs.join(', ')} }, and each ` +
    'call is one run'
  );
}

function paddingMessage(
  { output, alone, together }: Difference,
  inputs: readonly ModelPort[],
): string {
  const names = inputs.flatMap(({ name, variable }) => (variable ? [name] : []));
  return (
    `Padding changes the model's answers: a row has ${alone} in "${output}" alone, and ${together} ` +
    `when it is padded to the length of another row. Pad ${names.join(', ')} with what the model ` +
    'ignores (padWith), give it a mask of the padding, or declare no variableAxis: then rows share ' +
    'batches with rows of their own length'
  );
}

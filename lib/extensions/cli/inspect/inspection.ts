import { existsSync } from 'node:fs';
import { basename, dirname, extname, join } from 'node:path';
import { type InferenceSession, Tensor } from 'onnxruntime-common';
import { createServing, InvalidServingError, ServingLoadError } from '../../../index.js';
import {
  axisOfInput,
  dynamicAxes,
  rowMarksOf,
  type DeclaredAxes,
  describePort,
  type FileSignature,
  signatureOf,
  warningsOf,
} from '../../../doors/models.js';
import { logTo, messageOf } from '../../../doors/text.js';
import { storageClasses } from '../../../doors/values.js';
import { InvalidOnnxError, type OnnxFile, type OnnxPort, readOnnxFile } from './onnx-file.js';

export interface InspectedPort extends OnnxPort {
  /** Null if no axis counts rows; undefined if the file leaves it open. */
  readonly batchAxis: number | null | undefined;
}

export interface Inspection {
  readonly path: string;
  readonly file: OnnxFile;
  readonly inputs: readonly InspectedPort[];
  readonly outputs: readonly InspectedPort[];
  /** Comparison of rows alone and together; undefined if the model did not run. */
  readonly rows?: string;
  readonly warnings: readonly string[];
  readonly name: string;
  /** Axes that the file leaves open. */
  readonly declared: { readonly inputs: DeclaredAxes; readonly outputs: DeclaredAxes };
}

function readFile(path: string): OnnxFile {
  try {
    return readOnnxFile(path);
  } catch (cause) {
    const reason =
      cause instanceof InvalidOnnxError
        ? 'it is not an ONNX file, or it is cut'
        : 'it cannot be read';
    throw new ServingLoadError(`${path}: ${reason}: ${messageOf(cause)}`, { cause });
  }
}

function withAxes(
  ports: readonly OnnxPort[],
  found: readonly Pick<InspectedPort, 'name' | 'batchAxis'>[],
): InspectedPort[] {
  return ports.map((port) => ({
    ...port,
    batchAxis: found.find(({ name }) => name === port.name)?.batchAxis,
  }));
}

function likelyInputs({ inputs }: OnnxFile): Pick<InspectedPort, 'name' | 'batchAxis'>[] {
  const marks = rowMarksOf(
    inputs.map(({ shape }) => shape),
    [],
  );
  return inputs.map(({ name, shape }) => {
    const axis = axisOfInput(shape, marks);
    return { name, batchAxis: axis === 'open' ? undefined : axis };
  });
}

const KNOWN_DOMAINS = new Set([
  'ai.onnx',
  'ai.onnx.ml',
  'ai.onnx.training',
  'ai.onnx.preview.training',
  'com.microsoft',
  'com.microsoft.experimental',
  'com.microsoft.nchwc',
  'com.ms.internal.nhwc',
]);

/** @throws ServingLoadError for a file that is unreadable or not ONNX */
export function inspectModel(path: string): Inspection {
  const file = readFile(path);
  const { declared, signature, problem } = axesOf(file);
  return {
    path,
    file,
    inputs: withAxes(file.inputs, signature?.inputs ?? likelyInputs(file)),
    outputs: withAxes(file.outputs, signature?.outputs ?? []),
    warnings: [...(problem ?? []), ...warningsFor(path, file, signature)],
    name: basename(path, extname(path)),
    declared,
  };
}

/** Starts the model as a serving, which runs rows alone and together. */
export async function withComparedRows(inspection: Inspection): Promise<Inspection> {
  const { path, name, declared } = inspection;
  const lines: string[] = [];
  const add = (line: string): void => void lines.push(line);
  logTo({ log: () => {}, warn: add, error: add });
  const serving = createServing({ name, model: { file: path, ...declared } });
  const failure = await serving.start().then(
    () => undefined,
    (error: unknown) => messageOf(error),
  );
  await serving.close();
  const found = [...lines, ...(failure === undefined ? [] : [failure])].map((line) =>
    line.replace(/^The model of serving "[^"]*"/, 'The model').replace(/^Serving "[^"]*": /, ''),
  );
  const warnings = found.filter((line) => !inspection.warnings.includes(line));
  const rows = warnings.length === 0 ? 'equal alone and together' : 'see the warnings';
  return { ...inspection, rows, warnings: [...inspection.warnings, ...warnings] };
}

interface FoundAxes extends Pick<Inspection, 'declared'> {
  /** Undefined if no declaration helps. */
  readonly signature?: FileSignature;
  readonly problem?: readonly string[];
}

/** Adds likely axes if the file leaves some open. */
function axesOf(file: OnnxFile): FoundAxes {
  const { inputs, outputs } = file;
  const session = { inputMetadata: metadataOf(inputs), outputMetadata: metadataOf(outputs) };
  const likelyOutputs = likelyAxes(outputs, withAxes(inputs, likelyInputs(file)));
  const candidates = [
    { inputs: {}, outputs: {} },
    { inputs: likelyAxes(inputs), outputs: {} },
    { inputs: {}, outputs: likelyOutputs },
    { inputs: likelyAxes(inputs), outputs: likelyOutputs },
  ];
  let first: string | undefined;
  for (const declared of candidates) {
    try {
      const signature = signatureOf(session, declared);
      return first === undefined
        ? { declared, signature }
        : { declared, signature, problem: [first] };
    } catch (error) {
      if (!(error instanceof InvalidServingError)) {
        throw error;
      }
      first ??= error.message;
    }
  }
  return { declared: candidates[0]!, problem: [first!] };
}

/** Takes the axis of an input of the same rank, or else the first dynamic, or else the first. */
function likelyAxes(
  ports: readonly OnnxPort[],
  inputs: readonly InspectedPort[] = [],
): DeclaredAxes {
  const axes = ports
    .filter(({ shape }) => shape.length > 0)
    .map(({ name, shape }) => {
      const like = inputs.find((input) => input.batchAxis && input.shape.length === shape.length);
      return [name, { batchAxis: like?.batchAxis ?? dynamicAxes(shape)[0] ?? 0 }] as const;
    });
  return Object.fromEntries(axes);
}

function metadataOf(ports: readonly OnnxPort[]): readonly InferenceSession.ValueMetadata[] {
  return ports.map(({ name, type, isTensor, shape }) =>
    isTensor ? { name, isTensor, type: type as Tensor.Type, shape } : { name, isTensor },
  );
}

function warningsFor(
  path: string,
  { operators, opsets, inputs, outputs, weights }: OnnxFile,
  signature: FileSignature | undefined,
): string[] {
  const warnings = warningsOf({
    ...signature,
    dynamicallyQuantised: operators.has('DynamicQuantizeLinear'),
  }).map((warning) => `The model ${warning}`);
  for (const port of [...inputs, ...outputs]) {
    if (port.isTensor && !storageClasses.has(port.type) && port.type !== 'string') {
      warnings.push(
        `The model has ${describePort(port)}, a type that onnxruntime-node has no tensors ` +
          'of; export it with another type',
      );
    }
  }
  const foreign = [...opsets.keys()].filter((domain) => !KNOWN_DOMAINS.has(domain));
  if (foreign.length > 0) {
    warnings.push(
      `The model uses operators of ${foreign.join(', ')}, which onnxruntime does not have, and ` +
        'onnxruntime-node loads no libraries of operators; export it without them',
    );
  }
  const loops = ['Loop', 'Scan', 'If'].filter((operator) => operators.has(operator));
  if (loops.length > 0) {
    warnings.push(
      `The model decides at run time what it computes (${loops.join(', ')}): such a part runs for ` +
        'the batch as a whole, so its time may depend on the slowest row',
    );
  }
  if (operators.has('com.microsoft.EPContext')) {
    warnings.push('The model is compiled for one device (EPContext) and runs on no other');
  }
  const missing = [...weights.externalFiles].filter(
    (name) => !existsSync(join(dirname(path), name)),
  );
  if (missing.length > 0) {
    warnings.push(
      `The model has weights in ${missing.join(', ')}, which must lie in the folder of the model ` +
        'and is not there',
    );
  }
  return warnings;
}

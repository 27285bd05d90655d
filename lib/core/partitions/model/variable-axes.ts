import { filledTensor } from '../../batch/tensor.js';
import type { VariableAxes } from '../../batch/template.js';
import { InvalidServingError, messageOf } from '../../errors.js';
import {
  type DeclaredAxes,
  type DeclaredPorts,
  describePort,
  type ModelPort,
  type ModelSignature,
} from './model-signature.js';

/** @throws InvalidServingError for an axis that can't vary, or varies undeclared */
export function withVariableAxes<Signature extends Omit<ModelSignature, 'dynamicallyQuantised'>>(
  signature: Signature,
  declared: DeclaredPorts,
): Signature {
  const inputs = signature.inputs.map((port) => varying('input', port, declared.inputs, isDynamic));
  const names = variableNames(inputs);
  const outputs = signature.outputs.map((port) =>
    varying('output', port, declared.outputs, ({ shape }, axis) => names.has(shape[axis])),
  );
  const output = outputs.find(({ variable }) => variable);
  if (output && inputs.every(({ variable }) => !variable)) {
    throw new InvalidServingError(
      `The output ${describePort(output)} is declared with variableAxis ${output.variable!.axis}, ` +
        'and no input has one, to whose length its rows are cut back; declare that of an input too',
    );
  }
  checkNames('input', inputs, names);
  const replied = outputs.filter(({ name }) => signature.fetches.includes(name));
  checkNames('output', replied, names);
  return { ...signature, inputs, outputs };
}

/** A single port's axis is also under '', for a bare tensor. */
export function variableAxesOf(ports: readonly ModelPort[]): VariableAxes {
  const axes = Object.fromEntries(
    ports.flatMap(({ name, variable }) => (variable ? [[name, variable] as const] : [])),
  );
  const [only, ...others] = ports;
  return only?.variable && others.length === 0 ? { ...axes, '': only.variable } : axes;
}

/** @param may true if the axis declared with the name `*` is this port's */
function varying(
  kind: string,
  port: ModelPort,
  declared: DeclaredAxes,
  may: (port: ModelPort, axis: number) => boolean,
): ModelPort {
  const { name, type, shape, batchAxis } = port;
  const ofOthers = declared['*']?.variableAxis;
  const others = ofOthers !== undefined && may(port, ofOthers) ? declared['*']! : {};
  const { variableAxis: axis, padWith } = Object.hasOwn(declared, name) ? declared[name]! : others;
  const owner = `The ${kind} ${describePort(port)}`;
  if (kind === 'output' && padWith !== undefined) {
    throw new InvalidServingError(
      `${owner} is declared with padWith, and only rows of inputs are padded; leave it out`,
    );
  }
  if (axis === undefined) {
    if (padWith !== undefined) {
      throw new InvalidServingError(
        `${owner} is declared with padWith and without the variableAxis to pad; declare both`,
      );
    }
    return port;
  }
  const dim = shape[axis];
  if (batchAxis === null || axis === batchAxis || typeof dim !== 'string') {
    const reason =
      batchAxis === null
        ? 'has no batch axis, so its rows cannot differ'
        : axis === batchAxis
          ? `counts its rows on axis ${axis}`
          : dim === undefined
            ? `has no axis ${axis}`
            : `has the fixed length ${dim} on axis ${axis}`;
    throw new InvalidServingError(
      `${owner} ${reason}: its variableAxis must be another axis than that of its rows, and ` +
        'dynamic in the file',
    );
  }
  try {
    filledTensor(type, [1], padWith, name);
  } catch (cause) {
    throw new InvalidServingError(`${owner}: padWith: ${messageOf(cause)}`, { cause });
  }
  return { ...port, variable: { axis, padWith } };
}

function isDynamic({ shape, batchAxis }: ModelPort, axis: number): boolean {
  return batchAxis !== null && axis !== batchAxis && typeof shape[axis] === 'string';
}

/** Axes with the same name vary together. */
function checkNames(kind: string, ports: readonly ModelPort[], names: ReadonlySet<unknown>): void {
  for (const port of ports) {
    const axis = undeclaredAxis(port, names);
    if (axis >= 0) {
      throw new InvalidServingError(
        `Axis ${axis} of the ${kind} ${describePort(port)} has the length of a variable axis, and ` +
          `is not declared: declare ${kind}s: { ${JSON.stringify(port.name)}: { variableAxis: ` +
          `${axis} } }` +
          (kind === 'output' ? ', or leave the output out of fetches' : ''),
      );
    }
  }
}

export function uncutOutputs({ inputs, outputs }: Pick<ModelSignature, 'inputs' | 'outputs'>) {
  const names = variableNames(inputs);
  const uncut = outputs.filter((port) => undeclaredAxis(port, names) >= 0);
  return new Set(uncut.map(({ name }) => name));
}

function undeclaredAxis({ shape, variable }: ModelPort, names: ReadonlySet<unknown>): number {
  return shape.findIndex(
    (dim, axis) => typeof dim === 'string' && names.has(dim) && axis !== variable?.axis,
  );
}

function variableNames(inputs: readonly ModelPort[]): ReadonlySet<unknown> {
  return new Set(inputs.flatMap((port) => variableNameOf(port) ?? []));
}

function variableNameOf({ shape, variable }: ModelPort): string | undefined {
  const dim = variable && shape[variable.axis];
  return typeof dim === 'string' && dim !== '' && dim !== '?' ? dim : undefined;
}

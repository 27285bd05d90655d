import { InvalidServingError } from '../../errors.js';
import {
  type DeclaredPorts,
  describePort,
  type FileSignature,
  type ModelPort,
  type ModelSignature,
} from './model-signature.js';

/** @throws InvalidServingError when an input and its output cannot be the same state */
export function withoutStates(
  file: FileSignature,
  { state = {} }: Pick<DeclaredPorts, 'state'>,
): Omit<ModelSignature, 'dynamicallyQuantised'> {
  const states = Object.entries(state).map(([name, output]) => {
    const input = portNamed('input', name, file.inputs);
    checkState(input, portNamed('output', output, file.outputs));
    return { input, output };
  });
  const inputs = file.inputs.filter(({ name }) => !Object.hasOwn(state, name));
  if (inputs.length === 0 || file.fetches.length === 0) {
    throw new InvalidServingError(
      'All inputs or all outputs of the model are states, so that a step has no input or no result',
    );
  }
  return { ...file, inputs, states };
}

function portNamed(kind: string, name: string, ports: readonly ModelPort[]): ModelPort {
  const port = ports.find((each) => each.name === name);
  if (!port) {
    throw new InvalidServingError(
      `model.state names the ${kind} "${name}"; the model has ${ports.map((each) => each.name).join(', ')}`,
    );
  }
  return port;
}

function checkState(input: ModelPort, output: ModelPort): void {
  const names = `the input ${describePort(input)} and the output ${describePort(output)}`;
  if (input.batchAxis === null) {
    throw new InvalidServingError(
      `The input ${describePort(input)} is a state, and none of its axes counts rows; declare it: ` +
        'inputs: { name: { batchAxis: ... } }',
    );
  }
  const open = input.shape.findIndex(
    (dim, axis) => axis !== input.batchAxis && typeof dim !== 'number',
  );
  if (open >= 0) {
    throw new InvalidServingError(
      `The input ${describePort(input)} is a state, and axis ${open} may have any size; states of ` +
        'sessions begin as zeros of one size',
    );
  }
  const isAlike = (dim: number | string, axis: number): boolean =>
    axis === input.batchAxis || typeof dim !== 'number' || dim === input.shape[axis];
  if (
    input.type !== output.type ||
    input.shape.length !== output.shape.length ||
    !output.shape.every(isAlike)
  ) {
    throw new InvalidServingError(`model.state joins ${names}, which differ in type or shape`);
  }
}

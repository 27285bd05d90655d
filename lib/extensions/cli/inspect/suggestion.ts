import { literalOf, propertyOf, describePort, type DeclaredAxes } from '../../../internal.js';
import type { InspectedPort, Inspection } from './inspection.js';

export function suggestedDefinition({ name, path, declared }: Inspection): string {
  const axes = axesText(declared.inputs, declared.outputs);
  const model =
    axes.length === 0
      ? [`  model: ${literalOf(path)},`]
      : ['  model: {', `    file: ${literalOf(path)},`, ...axes, '  },'];
  return [
    "import { defineServing } from 'nestjs-serving';",
    '',
    `export const ${identifier(name)} = defineServing({`,
    `  name: ${literalOf(name)},`,
    ...model,
    '});',
  ].join('\n');
}

export function suggestedTypes({ name, inputs, outputs }: Inspection): string {
  const prefix = capital(identifier(name));
  return [
    "import type { Tensor } from 'nestjs-serving';",
    '',
    ...interfaceOf(`${prefix}Input`, inputs),
    '',
    ...interfaceOf(`${prefix}Output`, outputs),
  ].join('\n');
}

function interfaceOf(name: string, ports: readonly InspectedPort[]): string[] {
  return [
    `export interface ${name} {`,
    ...ports.flatMap((port) => [
      `  /** ${tensorOf(port)} */`,
      `  readonly ${propertyOf(port.name)}: Tensor;`,
    ]),
    '}',
  ];
}

function tensorOf({ type, shape, batchAxis }: InspectedPort): string {
  const own = typeof batchAxis === 'number' ? shape.with(batchAxis, 'rows') : shape;
  const shared = batchAxis === null ? ', one for all rows' : '';
  // An axis name may contain the end of a comment or line.
  return `${describePort({ name: '', type, shape: own })}${shared}`
    .replaceAll('*/', '* /')
    .replaceAll(/[\r\n]+/g, ' ');
}

/** Empty if the file defines all axes. */
export function axesText(inputs: DeclaredAxes, outputs: DeclaredAxes): string[] {
  const lines = [...portLines('inputs', inputs), ...portLines('outputs', outputs)];
  return lines.length === 0
    ? []
    : ['    // Check that these axes count the rows: the file leaves it open.', ...lines];
}

function portLines(kind: string, declared: DeclaredAxes): string[] {
  const entries = Object.entries(declared).map(
    ([name, { batchAxis }]) => `${propertyOf(name)}: { batchAxis: ${batchAxis} }`,
  );
  return entries.length === 0 ? [] : [`    ${kind}: { ${entries.join(', ')} },`];
}

/** `resnet50-v1` becomes `resnet50V1`. */
export function identifier(name: string): string {
  const camel = name
    .replaceAll(/[^A-Za-z0-9]+(.)?/g, (_, next: string | undefined) => next?.toUpperCase() ?? '')
    .replace(/^[A-Z]/, (first) => first.toLowerCase());
  if (!/^[a-z]/.test(camel)) {
    return `model${camel}`;
  }
  return RESERVED.has(camel) ? `${camel}Model` : camel;
}

/** Words that cannot name a constant, and the suggestion's import. */
const RESERVED: ReadonlySet<string> = new Set(
  (
    'arguments await break case catch class const continue debugger default defineServing delete do ' +
    'else enum eval export extends false finally for function if implements import in instanceof ' +
    'interface let new null package private protected public return static super switch this throw ' +
    'true try typeof undefined var void while with yield'
  ).split(' '),
);

function capital(name: string): string {
  return name.charAt(0).toUpperCase() + name.slice(1);
}

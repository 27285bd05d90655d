import { type DeclaredAxes, describePort } from '../../../doors/models.js';
import { formatBytes, literalOf, propertyOf } from '../../../doors/text.js';
import type { CliOutput } from '../output.js';
import {
  type InspectedPort,
  type Inspection,
  inspectModel,
  withComparedRows,
} from './inspection.js';

export interface InspectOptions {
  readonly json?: boolean;
  /** Runs rows alone and together, as a start does. */
  readonly run?: boolean;
}

/** `nestjs-serving inspect model.onnx` */
export async function inspect(
  path: string,
  { json = false, run = true }: InspectOptions,
  out: CliOutput,
): Promise<void> {
  const read = inspectModel(path);
  const inspection = run ? await withComparedRows(read) : read;
  out.print(
    json ? escaped(JSON.stringify(asJson(inspection), undefined, 2)) : asText(inspection, out),
  );
}

/** Names may hold control and direction marks, which terminals obey. */
function escaped(text: string): string {
  return text.replaceAll(
    // oxlint-disable-next-line no-control-regex
    /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}

/** Escapes line breaks too. */
function escapedLine(text: string): string {
  return escaped(text).replaceAll('\n', String.raw`\n`);
}

function asText(inspection: Inspection, out: CliOutput): string {
  const { path, file, inputs, outputs, warnings } = inspection;
  const { weights } = file;
  const opsets = [...file.opsets].map(([domain, version]) => `${domain} ${version}`).join(', ');
  const rows: [string, string[]][] = [
    ['file', [`${path}, ${formatBytes(file.bytes)}`]],
    ['format', [`ONNX IR version ${file.irVersion}, operators of ${opsets}`]],
    ['made by', [file.producer || 'unknown']],
    ['weights', [weightsText(inspection)]],
    ['operators', [mostUsed(file.operators)]],
    ['inputs', inputs.map(portText)],
    ['outputs', outputs.map(portText)],
    ...(inspection.rows === undefined ? [] : [['rows', [inspection.rows]] as [string, string[]]]),
  ];
  if (weights.externalFiles.size > 0) {
    rows.splice(4, 0, ['beside it', [...weights.externalFiles]]);
  }
  const title = (text: string): string => out.styled('bold', text);
  return [
    ...rows.flatMap(([name, lines]) =>
      lines.map(
        (line, i) => `${out.styled('dim', (i === 0 ? name : '').padEnd(10))} ${escapedLine(line)}`,
      ),
    ),
    ...warnings.flatMap((warning) => [
      '',
      `${out.styled('yellow', 'warning')}    ${escapedLine(warning)}`,
    ]),
    '',
    title('A definition to begin with'),
    '',
    escaped(suggestedDefinition(inspection)),
    '',
    title('The types of a call and its answer'),
    '',
    escaped(suggestedTypes(inspection)),
  ].join('\n');
}

function portText(port: InspectedPort): string {
  const { batchAxis } = port;
  const rows =
    batchAxis === undefined
      ? 'the axis of rows is open'
      : batchAxis === null
        ? 'no rows'
        : `rows on axis ${batchAxis}`;
  return `${describePort(port)} (${rows})`;
}

function weightsText({ file: { weights } }: Inspection): string {
  const { count, bytes, byType } = weights;
  const shares = [...byType]
    .filter(([, own]) => own > 0)
    .toSorted(([, a], [, b]) => b - a)
    .map(([type, own]) => `${type} ${percent(own / bytes)}`);
  return `${count.toLocaleString('en')} numbers, ${formatBytes(bytes)}: ${shares.join(', ') || 'none'}`;
}

function percent(share: number): string {
  return share < 0.01 ? 'below 1 %' : `${Math.round(100 * share)} %`;
}

const MOST_OPERATORS = 12;

function mostUsed(operators: ReadonlyMap<string, number>): string {
  const sorted = [...operators].toSorted(([, a], [, b]) => b - a);
  const shown = sorted.slice(0, MOST_OPERATORS).map(([name, count]) => `${name} ${count}`);
  const others = sorted.length - shown.length;
  return shown.join(', ') + (others > 0 ? `, and ${others} others` : '');
}

function asJson(inspection: Inspection): object {
  const { path, file, inputs, outputs, rows, warnings } = inspection;
  const { weights } = file;
  return {
    path,
    bytes: file.bytes,
    irVersion: file.irVersion,
    producer: file.producer,
    opsets: Object.fromEntries(file.opsets),
    operators: Object.fromEntries(file.operators),
    weights: {
      count: weights.count,
      bytes: weights.bytes,
      bytesByType: Object.fromEntries(weights.byType),
      externalFiles: [...weights.externalFiles],
    },
    inputs,
    outputs,
    rows,
    warnings,
    definition: suggestedDefinition(inspection),
    types: suggestedTypes(inspection),
  };
}

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
  // An axis name may contain a comment's or line's end.
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

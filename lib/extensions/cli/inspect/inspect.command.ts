import { formatBytes, describePort } from '../../../internal.js';
import type { CliOutput } from '../output.js';
import { type InspectedPort, type Inspection, inspectModel } from './inspection.js';
import { suggestedDefinition, suggestedTypes } from './suggestion.js';

/** `nestjs-serving inspect model.onnx` */
export function inspect(path: string, { json = false }: { json?: boolean }, out: CliOutput): void {
  const inspection = inspectModel(path);
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
  const { path, file, inputs, outputs, warnings } = inspection;
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
    warnings,
    definition: suggestedDefinition(inspection),
    types: suggestedTypes(inspection),
  };
}

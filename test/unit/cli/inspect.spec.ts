import { afterAll, describe, expect, it } from '@jest/globals';
import { InferenceSession } from 'onnxruntime-node';
import { Writable } from 'node:stream';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ServingLoadError } from '../../../lib/index.js';
import { inspectModel } from '../../../lib/extensions/cli/inspect/inspection.js';
import { InvalidOnnxError, readOnnxFile } from '../../../lib/extensions/cli/inspect/onnx-file.js';
import {
  identifier,
  inspect,
  suggestedDefinition,
  suggestedTypes,
} from '../../../lib/extensions/cli/inspect/inspect.command.js';
import { CliOutput } from '../../../lib/extensions/cli/output.js';
import {
  echoModel,
  linearModel,
  quantisedModel,
  recurrentModel,
  transposingModel,
  value,
  weightsApartModel,
} from '../../fixtures/models/models.js';
import { elementTypes, node, onnxModel } from '../../fixtures/models/onnx-writer.js';
import { mutated } from '../../fixtures/values/mutated-bytes.js';

const folder = mkdtempSync(join(tmpdir(), 'inspect-'));
afterAll(() => rmSync(folder, { recursive: true }));

function saved(model: Uint8Array, name = 'my-model.onnx'): string {
  const path = join(folder, name);
  writeFileSync(path, model);
  return path;
}

const ofEachType = Object.fromEntries(
  Object.keys(elementTypes).map((type) => [
    `in_${type}`,
    value(type as keyof typeof elementTypes, 'batch', 3),
  ]),
);

it.each([
  ['the digits', 'sample/01-digits/model/digits.onnx'],
  [
    'the audio model, whose nodes are in inner graphs',
    'sample/03-audio-streams/model/silero_vad_v6.onnx',
  ],
  ['inputs of every type', saved(echoModel(ofEachType), 'types.onnx')],
  ['axes without names', saved(echoModel({ x: value('float32', '', 3, '') }), 'unnamed.onnx')],
  ['a fixed batch', saved(linearModel(4), 'fixed.onnx')],
])('[21.1] The inputs and outputs are those that onnxruntime finds: %s', async (_, path) => {
  const session = await InferenceSession.create(path);
  const { inputMetadata, outputMetadata } = session;
  await session.release();

  const { inputs, outputs } = readOnnxFile(path);

  expect(inputs).toEqual(inputMetadata);
  expect(outputs).toEqual(outputMetadata);
});

it('[21.1] Operators are counted, those of inner graphs too', () => {
  const { operators } = readOnnxFile('sample/03-audio-streams/model/silero_vad_v6.onnx');

  expect(operators.get('If')).toBe(25);
  expect(operators.get('Conv')).toBe(12);
});

it('[21.1] Weights are counted with their type and their files', () => {
  const { weights } = readOnnxFile('sample/01-digits/model/digits.onnx');
  const apart = readOnnxFile(saved(weightsApartModel('apart.bin')));

  expect(weights).toMatchObject({ count: 101_770, bytes: 407_080 });
  expect([...weights.byType]).toEqual([['float32', 407_080]]);
  expect([...apart.weights.externalFiles]).toEqual(['apart.bin']);
});

const bytesOfModels = [
  readFileSync('sample/01-digits/model/digits.onnx').subarray(0, 4096),
  Buffer.from(recurrentModel('layers', 'batch')),
];

it('[21.2] A cut or changed file is refused, or read without an unexpected error', () => {
  const path = join(folder, 'changed.onnx');
  for (const bytes of mutated(bytesOfModels, 3000, 1)) {
    writeFileSync(path, bytes);
    try {
      readOnnxFile(path);
    } catch (error) {
      expect(error).toBeInstanceOf(InvalidOnnxError);
    }
  }
});

/** A field of bytes of that number, whose length takes three bytes. */
const wrap = (number: number, bytes: Buffer): Buffer => {
  const groups = [bytes.length & 127, (bytes.length >> 7) & 127, bytes.length >> 14];
  return Buffer.concat([
    Buffer.of(8 * number + 2, groups[0]! | 128, groups[1]! | 128, groups[2]!),
    bytes,
  ]);
};

const none = Buffer.alloc(0);

it('[21.2] Graphs that are nested too deeply are refused', () => {
  // Graph 7, node 1, attribute 5, graph 6, node 1, ...
  let graph: Buffer = Buffer.alloc(0);
  for (let depth = 0; depth < 200; depth++) {
    graph = wrap(1, wrap(5, wrap(6, graph)));
  }

  const nested = saved(Buffer.concat([wrap(7, graph), wrap(8, Buffer.alloc(0))]));
  expect(() => readOnnxFile(nested)).toThrow(InvalidOnnxError);
  expect(() => readOnnxFile(nested)).toThrow(/deep/);
});

it('[21.1] A file with very many weights is read', () => {
  // Each is a field 5 of the graph without a byte.
  const graph = wrap(7, Buffer.from('2a00'.repeat(200_000), 'hex'));

  const { weights } = readOnnxFile(saved(Buffer.concat([graph, wrap(8, Buffer.alloc(0))])));

  expect(weights.count).toBe(200_000);
});

it.each([
  ['tensor', 1],
  ['sequence', 4],
  ['map', 5],
  ['sparse tensor', 8],
  ['optional', 9],
])('[21.1] A port that is a %s is described as one', (kind, field) => {
  const port = wrap(11, Buffer.concat([wrap(1, Buffer.from('x')), wrap(2, wrap(field, none))]));
  const file = readOnnxFile(saved(Buffer.concat([wrap(7, port), wrap(8, none)]), 'port.onnx'));

  const type = kind === 'tensor' ? 'unknown' : kind;
  expect(file.inputs).toEqual([{ name: 'x', isTensor: kind === 'tensor', type, shape: [] }]);
});

it('[21.1] The axis of -1 that some exporters write is read', () => {
  const axis = wrap(1, Buffer.from('08ffffffffffffffffff01', 'hex'));
  const type = wrap(1, Buffer.concat([Buffer.of(8, 1), wrap(2, axis)]));
  const port = wrap(11, Buffer.concat([wrap(1, Buffer.from('x')), wrap(2, type)]));
  const file = readOnnxFile(saved(Buffer.concat([wrap(7, port), wrap(8, none)]), 'axis.onnx'));

  expect(file.inputs).toEqual([{ name: 'x', isTensor: true, type: 'float32', shape: [-1] }]);
});

it.each([
  ['no such file', join(folder, 'missing.onnx'), 'missing.onnx: it cannot be read: ENOENT'],
  ['another file', 'README.md', 'README.md: it is not an ONNX file, or it is cut'],
  ['an empty file', saved(new Uint8Array(), 'empty.onnx'), 'it is not an ONNX file, or it is cut'],
])('[21.2] The error names the file: %s', (_, path, message) => {
  expect(() => inspectModel(path)).toThrow(ServingLoadError);
  expect(() => inspectModel(path)).toThrow(message);
});

describe('[21.3] Warnings', () => {
  it.each([
    ['a fixed batch', linearModel(1), 'The model has a fixed batch of 1'],
    ['quantised activations', quantisedModel(), 'The model quantises its activations'],
    [
      'an open axis of rows',
      echoModel({ x: value('float32', 3, 'a', 'b') }),
      'does not define which axis of the input x: float32[3, a, b] counts rows',
    ],
    ['missing weights', weightsApartModel('nowhere.bin'), 'The model has weights in nowhere.bin'],
  ])('%s', (_, model, warning) => {
    expect(inspectModel(saved(model)).warnings).toEqual([expect.stringContaining(warning)]);
  });

  it('control flow', () => {
    const { warnings } = inspectModel('sample/03-audio-streams/model/silero_vad_v6.onnx');

    expect(warnings).toContainEqual(
      expect.stringContaining('decides at run time what it computes (If)'),
    );
  });

  it('none for an ordinary model', () => {
    expect(inspectModel(saved(linearModel('batch'))).warnings).toEqual([]);
  });
});

it('[21.3] The axis of rows is that of a serving', () => {
  const { inputs, outputs } = inspectModel(saved(transposingModel()));

  expect(inputs).toMatchObject([{ name: 'x', batchAxis: 0 }]);
  expect(outputs).toMatchObject([{ name: 'y', batchAxis: 1 }]);
});

it('[21.4] A definition is suggested, with the axes that the file leaves open', () => {
  const plain = inspectModel(saved(linearModel('batch'), '2-layers.v1.onnx'));
  const open = inspectModel(
    saved(echoModel({ "it's": value('float32', 3, 'a', 'b') }), 'open.onnx'),
  );

  const recurrent = inspectModel('sample/03-audio-streams/model/silero_vad_v6.onnx');

  expect(suggestedDefinition(recurrent)).toContain('stateN: { batchAxis: 1 }');
  expect(suggestedDefinition(plain)).toBe(`import { defineServing } from 'nestjs-serving';

export const model2LayersV1 = defineServing({
  name: '2-layers.v1',
  model: '${folder}/2-layers.v1.onnx',
});`);
  expect(suggestedDefinition(open)).toContain(`  model: {
    file: '${folder}/open.onnx',
    // Check that these axes count the rows: the file leaves it open.
    inputs: { 'it\\'s': { batchAxis: 1 } },`);
});

it('[21.4] Types are suggested for what callers pass and receive', () => {
  const inspection = inspectModel(saved(recurrentModel(2, 'batch'), 'recurrent.onnx'));

  expect(suggestedTypes(inspection)).toBe(`import type { Tensor } from 'nestjs-serving';

export interface RecurrentInput {
  /** float32[rows, 3] */
  readonly x: Tensor;
  /** float32[2, rows, 3] */
  readonly state: Tensor;
  /** int64[], one for all rows */
  readonly rate: Tensor;
}

export interface RecurrentOutput {
  /** float32[rows, 3] */
  readonly y: Tensor;
  /** float32[2, rows, 3] */
  readonly next: Tensor;
  /** int64[], one for all rows */
  readonly used: Tensor;
}`);
});

it('[X4] No name in a model reaches the terminal as control characters, or forges a line', async () => {
  const hostile = '\u001b]0;owned\u0007\u001b[2J\u009b31m\u202e\nwarning    none';
  const path = saved(echoModel({ [hostile]: value('float32', `n${hostile}`, 2) }), 'hostile.onnx');
  for (const json of [false, true]) {
    let printed = '';
    const stream = new Writable({
      write: (chunk: Buffer, _, done) => {
        printed += chunk.toString();
        done();
      },
    }) as NodeJS.WriteStream;
    await inspect(path, { json }, new CliOutput(stream, stream));

    expect(printed).toContain('owned');
    // oxlint-disable-next-line no-control-regex
    expect(printed.match(/[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u202a-\u202e]/g)).toBeNull();
    expect(printed.split('\n').filter((line) => line.startsWith('warning    none'))).toEqual([]);
  }
});

it.each([
  ['class', 'classModel'],
  ['await', 'awaitModel'],
  ['defineServing', 'defineServingModel'],
  ['New', 'newModel'],
  ['classes', 'classes'],
  ['1-class', 'model1Class'],
])('[X4] The suggested name for %s.onnx is one that TypeScript takes: %s', (name, expected) => {
  expect(identifier(name)).toBe(expected);
});

describe('[FR2] inspect runs rows alone and together, as a start does', () => {
  const x = value('float32', 'batch', 3);
  const cumulative = onnxModel({
    inputs: { x },
    outputs: { y: x },
    nodes: [node('CumSum', ['x', 'axis'], ['y'])],
    initializers: { axis: { type: 'int64', dims: [], data: BigInt64Array.of(0n) } },
  });

  it('and warns of answers that depend on other rows', async () => {
    expect(await outputOf(linearModel('batch'))).toContain('rows       equal alone and together');
    expect(await outputOf(cumulative)).toMatch(
      /rows {7}see the warnings\n[^]*warning +A row of the model has another answer beside other rows/,
    );
  });

  it('unless it only reads the file', async () => {
    expect(await outputOf(cumulative, { run: false })).not.toMatch(/^rows|another answer/m);
  });
});

async function outputOf(model: Uint8Array, options: { run?: boolean } = {}): Promise<string> {
  let text = '';
  const write = (chunk: Buffer, _: string, done: () => void): void => {
    text += chunk.toString();
    done();
  };
  const stream = new Writable({ write }) as NodeJS.WriteStream;
  await inspect(saved(model, 'rows.onnx'), options, new CliOutput(stream, stream));
  return text;
}

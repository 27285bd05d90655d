import { afterEach, describe, expect, it } from '@jest/globals';
import { ConsoleLogger, type INestApplicationContext, Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import {
  type Batch,
  createServing,
  type ServingDefinition,
  type ServingHandler,
  ServingModule,
  ServingService,
  type ServingSignature,
} from 'nestjs-serving';
import type { Tensor } from 'onnxruntime-common';
import { useCluster } from '../../fixtures/cluster/use-cluster.js';
import { linearModel, recurrentModel } from '../../fixtures/models/models.js';

const digits = { name: 'digits', model: 'sample/01-digits/model/digits.onnx' };

const ofDigits: ServingSignature = {
  inputs: [{ name: 'image', type: 'float32', shape: ['batch', 784], batchAxis: 0 }],
  outputs: [{ name: 'probabilities', type: 'float32', shape: ['batch', 10], batchAxis: 0 }],
};

const masked = {
  name: 'masked',
  model: {
    useFactory: () => (rows: { ids: Tensor }) => Array.from({ length: rows.ids.dims[0]! }, () => 1),
    signature: {
      template: {
        ids: { type: 'int64', shape: [null, 'length'] },
        mask: { type: 'bool', shape: [null, null, 4] },
      },
    },
  },
} satisfies ServingDefinition;

const ofMasked: ServingSignature = {
  inputs: [
    { name: 'ids', type: 'int64', shape: [null, 'length'], batchAxis: 0 },
    { name: 'mask', type: 'bool', shape: [null, null, 4], batchAxis: 0 },
  ],
  outputs: undefined,
};

const plain = { name: 'plain', model: { useFactory: () => (rows: string[]) => rows } };

class Upper implements ServingHandler {
  init(): void {}

  handleBatch(batch: Batch): { output: unknown } {
    return { output: batch.consume() };
  }
}

/** Collects the messages of servings, of all levels. */
class Recorder extends ConsoleLogger {
  readonly lines: string[] = [];

  override log(message: string, context: string): void {
    this.record('', message, context);
  }

  override warn(message: string, context: string): void {
    this.record('WARN ', message, context);
  }

  override debug(message: string, context: string): void {
    this.record('DEBUG ', message, context);
  }

  override verbose(message: string, context: string): void {
    this.record('VERBOSE ', message, context);
  }

  private record(level: string, message: string, context: string): void {
    if (context === 'Serving') {
      this.lines.push(level + message);
    }
  }
}

describe('The signature of a serving', () => {
  let app: INestApplicationContext | undefined;

  afterEach(() => app?.close());

  async function start(...servings: ServingDefinition[]): Promise<[ServingService, string[]]> {
    @Module({ imports: [ServingModule.forRoot({ servings })] })
    class AppModule {}

    const logger = new Recorder();
    app = await NestFactory.createApplicationContext(AppModule, { logger, abortOnError: false });
    return [app.get(ServingService), logger.lines];
  }

  it('[D6] That of a model has the names, types and shapes of its file', async () => {
    const [servings] = await start(digits, {
      name: 'recurrent',
      model: {
        file: recurrentModel('', 'batch'),
        inputs: { state: { batchAxis: 1 } },
        outputs: { next: { batchAxis: 1 } },
        fetches: ['y', 'used'],
      },
    });

    expect(servings.get('digits').signature).toEqual(ofDigits);
    expect(servings.get('recurrent').signature).toEqual({
      inputs: [
        { name: 'x', type: 'float32', shape: ['batch', 3], batchAxis: 0 },
        { name: 'state', type: 'float32', shape: [null, 'batch', 3], batchAxis: 1 },
        { name: 'rate', type: 'int64', shape: [], batchAxis: null },
      ],
      outputs: [
        { name: 'y', type: 'float32', shape: ['batch', 3], batchAxis: 0 },
        { name: 'used', type: 'int64', shape: [], batchAxis: null },
      ],
    });
  });

  it('[D6] That of a template has its inputs, and nothing else has one', async () => {
    const { ids } = masked.model.signature.template;
    const lone = {
      ...masked,
      name: 'lone',
      model: { ...masked.model, signature: { template: ids } },
    };
    const [servings] = await start(masked, lone, plain, {
      name: 'upper',
      model: { useClass: Upper },
    });

    expect(servings.get('masked').signature).toEqual(ofMasked);
    expect(servings.get('lone').signature).toEqual({
      inputs: [{ name: '', type: 'int64', shape: [null, 'length'], batchAxis: 0 }],
      outputs: undefined,
    });
    expect(servings.get('plain').signature).toBeUndefined();
    expect(servings.get('upper').signature).toBeUndefined();
  });

  it('[D6] A model has none before it starts, and a template has', () => {
    expect(createServing(digits).signature).toBeUndefined();
    expect(createServing(masked).signature).toEqual(ofMasked);
  });

  it('[D7] The boot logs one line for each serving', async () => {
    const isolation = 'process' as const;
    const [, lines] = await start(
      { ...digits, partitions: 2 },
      { ...digits, name: 'lone' },
      { name: 'threads', model: { file: linearModel('n'), isolation: 'thread' }, partitions: 2 },
      {
        name: 'foreign',
        model: { file: linearModel('n'), session: { preferredOutputLocation: 'cpu' } },
      },
      { name: 'linear', model: { file: linearModel('n'), isolation }, batchSize: [1, 4] },
      masked,
      { ...plain, partitions: 3, warmUp: ['a'] },
      { name: 'own', model: { file: linearModel('n'), isolation: 'none' } },
      { name: 'upper', model: { useClass: Upper } },
      {
        name: 'file',
        model: { useFile: new URL('../../fixtures/workers/echo.mjs', import.meta.url) },
      },
    );

    expect(lines.map((line) => line.replace(/\b\d+ ms/g, 'N ms')).toSorted()).toEqual([
      'Serving "digits" is ready: model on cpu, natively, 2 runs at a time; inputs image: ' +
        'float32[batch, 784]; outputs probabilities: float32[batch, 10]; loaded in N ms',
      'Serving "file" is ready: file, 1 thread; loaded in N ms',
      'Serving "foreign" is ready: model on cpu, 1 thread, since native sessions have no option ' +
        'preferredOutputLocation; inputs x: float32[n, 3]; outputs y: float32[n, 2]; loaded in N ms',
      'Serving "linear" is ready: model on cpu, 1 process; inputs x: float32[n, 3]; ' +
        'outputs y: float32[n, 2]; loaded in N ms; warm-up N ms',
      'Serving "lone" is ready: model on cpu, natively; inputs image: float32[batch, 784]; ' +
        'outputs probabilities: float32[batch, 10]; loaded in N ms',
      'Serving "masked" is ready: function, 1 partition; inputs ids: int64[?, length], ' +
        'mask: bool[?, ?, 4]; loaded in N ms',
      'Serving "own" is ready: model on cpu, in the application\'s own thread; inputs ' +
        'x: float32[n, 3]; outputs y: float32[n, 2]; loaded in N ms',
      'Serving "plain" is ready: function, 3 partitions; loaded in N ms; warm-up N ms',
      'Serving "threads" is ready: model on cpu, 2 threads; inputs x: float32[n, 3]; ' +
        'outputs y: float32[n, 2]; loaded in N ms',
      'Serving "upper" is ready: class, 1 partition; loaded in N ms',
    ]);
  });
});

describe('The signature of a serving of another node', () => {
  const cluster = useCluster();

  it('[D6] It is that of the node, from the time when one is known', async () => {
    const client = await cluster.node({ remotes: ['digits', 'masked', 'plain'] });
    expect(client.servings.get('digits').signature).toBeUndefined();

    const node = await cluster.node({ servings: [digits, masked, plain] });
    await client.untilNodes('plain');

    expect(client.servings.get('digits').signature).toEqual(ofDigits);
    expect(client.servings.get({ distributed: 'masked' }).signature).toEqual(ofMasked);
    expect(client.servings.get('plain').signature).toBeUndefined();
    expect(node.servings.get('digits').signature).toEqual(ofDigits);
  });

  it('[D6] Signatures that do not fit into 16 KB in all are not sent', async () => {
    const wide = (name: string) => ({
      ...masked,
      name,
      model: {
        ...masked.model,
        signature: {
          template: Object.fromEntries(
            Array.from({ length: 100 }, (_, i) => [
              `a tensor with a long name, the number ${i}`,
              masked.model.signature.template.ids,
            ]),
          ),
        },
      },
    });
    const client = await cluster.node();
    const node = await cluster.node({ servings: [wide('one'), wide('two'), masked] });
    await client.untilNodes('masked');

    const isKnown = (name: string) => client.servings.get(name).signature !== undefined;
    expect(['one', 'two', 'masked'].map(isKnown)).toEqual([true, false, true]);
    expect(node.servings.get('two').signature?.inputs).toHaveLength(100);
  });
});

import { expect, it } from '@jest/globals';
import {
  type DynamicModule,
  Injectable,
  Module,
  type OnApplicationBootstrap,
} from '@nestjs/common';
import {
  type Batch,
  getServingToken,
  last,
  type SequenceModel,
  Serving,
  type ServingDefinition,
  type ServingHandler,
  ServingModule,
} from 'nestjs-serving';
import type { ServingKind } from '../../../lib/core/partitions/engine.js';
import { describeOnPlatforms } from '../../fixtures/partitions/platforms.js';

@Injectable()
class Dictionary {
  /** The lifecycle events of its users, in order. */
  readonly story: unknown[] = [];

  reverse(word: string): string {
    return word.split('').toReversed().join('');
  }
}

@Module({ providers: [Dictionary], exports: [Dictionary] })
class DictionaryModule {}

@Injectable()
class Reverser implements ServingHandler<string[]>, OnApplicationBootstrap {
  constructor(private readonly dictionary: Dictionary) {}

  async init(kind: ServingKind, partitions: readonly object[]): Promise<void> {
    this.dictionary.story.push([kind, partitions]);
  }

  onApplicationBootstrap(): void {
    this.dictionary.story.push('bootstrap');
  }

  handleBatch(batch: Batch, partition: number): { output: string[] } {
    this.dictionary.story.push([partition, batch.size]);
    return { output: (batch.consume() as string[]).map((word) => this.dictionary.reverse(word)) };
  }
}

class ReverserModule {}

/** Spells words backwards, a letter for each step. */
@Injectable()
class Speller implements SequenceModel<string, string, string[]> {
  constructor(private readonly dictionary: Dictionary) {}

  init(kind: ServingKind, partitions: readonly object[]): void {
    this.dictionary.story.push([kind, partitions]);
  }

  start(words: readonly string[]): string[][] {
    this.dictionary.story.push(words.join(' '));
    return words.map((word) => this.dictionary.reverse(word).split(''));
  }

  step(rows: readonly string[][]) {
    return rows.map((letters) => {
      const letter = letters.shift()!;
      return letters.length === 0 ? last(letter) : letter;
    });
  }
}

const spelling = { name: 'speller' };

describeOnPlatforms('A class serving', (listen) => {
  const options = {
    name: 'reverser',
    batchSize: 2,
    batchTimeout: 1_000_000,
    partitions: [{ memory: 'short' }],
  };
  const byClass: ServingDefinition = { ...options, model: { useClass: Reverser } };
  const byToken: ServingDefinition = { ...options, model: { useExisting: Reverser } };
  const nextToIt = { imports: [DictionaryModule], providers: [Reverser], exports: [Reverser] };

  it.each<[string, DynamicModule[]]>([
    [
      'useClass in forRoot',
      [ServingModule.forRoot({ servings: [byClass], imports: [DictionaryModule] })],
    ],
    [
      'useClass in forFeature',
      [
        ServingModule.forRoot(),
        ServingModule.forFeature({ servings: [byClass], imports: [DictionaryModule] }),
      ],
    ],
    [
      'useExisting in forRoot',
      [ServingModule.forRoot({ servings: [byToken] }), { module: ReverserModule, ...nextToIt }],
    ],
    [
      'useExisting in forRootAsync',
      [
        ServingModule.forRootAsync({
          names: ['reverser'],
          useFactory: () => ({ servings: [byToken] }),
        }),
        { module: ReverserModule, ...nextToIt },
      ],
    ],
  ])(
    '[1.2] A class gets its dependencies and is initialised before the application starts: %s',
    async (_, imports) => {
      const { app } = await listen({ imports });
      const reverser = app.get<Serving<string, string>>(getServingToken('reverser'));

      expect(await Promise.all([reverser.batchedRun('live'), reverser.batchedRun('tar')])).toEqual([
        'evil',
        'rat',
      ]);

      expect(app.get(Dictionary).story).toEqual([
        ['batched', [{ memory: 'short', batchKeys: ['default'] }]],
        'bootstrap',
        [0, 2],
      ]);
    },
  );

  it.each<[string, () => DynamicModule[]]>([
    [
      'useClass',
      () => [
        ServingModule.forRoot({
          servings: [{ ...spelling, model: { useClass: Speller, sequence: {} } }],
          imports: [DictionaryModule],
        }),
      ],
    ],
    [
      'useExisting',
      () => [
        ServingModule.forRoot({
          servings: [{ ...spelling, model: { useExisting: Speller, sequence: {} } }],
        }),
        {
          module: ReverserModule,
          imports: [DictionaryModule],
          providers: [Speller],
          exports: [Speller],
        },
      ],
    ],
  ])('[13.11] A class gets its dependencies and runs a sequence: %s', async (_, imports) => {
    const { app } = await listen({ imports: imports() });
    const speller = app.get<Serving<string, string[]>>(getServingToken('speller'));

    expect(await Promise.all([speller.batchedRun('live'), speller.batchedRun('tar')])).toEqual([
      ['e', 'v', 'i', 'l'],
      ['r', 'a', 't'],
    ]);

    expect(app.get(Dictionary).story).toEqual([
      ['batched', [{ batchKeys: ['default'] }]],
      'live tar',
    ]);
  });
});

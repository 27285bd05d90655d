import { afterEach, describe, expect, it } from '@jest/globals';
import type { INestApplication } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { ServingModule } from 'nestjs-serving';
// #region imports
import { Injectable } from '@nestjs/common';
import { type BatchContext, defineServing, InjectServing, type ServingOf } from 'nestjs-serving';
// #endregion
import { getServingToken, Tensor } from 'nestjs-serving';
import { inFolder } from '../../fixtures/serving/in-folder.js';

inFolder('sample/03-audio-streams/model');

// #region model
const sr = new Tensor('int64', [16_000n], []);

export const vad = defineServing({
  name: 'vad',
  model: {
    file: 'silero_vad_v6.onnx',
    state: { state: 'stateN' }, // The output stateN of one run is the input state of the next.
  },
  preprocess: (window: Float32Array) => ({
    batch: { input: new Tensor('float32', window, [1, 576]), sr },
  }),
  postprocess: ({ output }: { output: Tensor }) => Number(output.data[0]),
});
// #endregion

// #region use
@Injectable()
export class Transcriber {
  constructor(@InjectServing(vad) private readonly detector: ServingOf<typeof vad>) {}

  async speechIn(microphone: AsyncIterable<Float32Array>): Promise<number[]> {
    const session = this.detector.open();
    const probabilities: number[] = [];
    try {
      for await (const window of microphone) {
        probabilities.push(await session.run(window, { timeout: 200 }));
      }
    } finally {
      await session.close();
    }
    return probabilities;
  }
}
// #endregion

// #region function
export const averages = defineServing({
  name: 'averages',
  model: {
    useFactory: () => (values: number[], batch: BatchContext) => {
      const states = batch.states as ({ sum: number; count: number } | undefined)[];
      return values.map((value, row) => {
        const { sum, count } = states[row] ?? { sum: 0, count: 0 };
        states[row] = { sum: sum + value, count: count + 1 };
        return (sum + value) / (count + 1);
      });
    },
    sessions: { max: 5_000, idle: 30_000 },
  },
});
// #endregion

async function* windows(): AsyncGenerator<Float32Array> {
  for (let window = 0; window < 3; window++) {
    yield new Float32Array(576).fill(0.01);
  }
}

describe('The manual of sessions', () => {
  let app: INestApplication | undefined;

  afterEach(() => app?.close());

  it('[16.1] [16.8] Its snippets run', async () => {
    const module = await Test.createTestingModule({
      imports: [ServingModule.forRoot({ servings: [vad, averages] })],
      providers: [Transcriber],
    }).compile();
    app = module.createNestApplication({ logger: false });
    await app.init();

    const probabilities = await app.get(Transcriber).speechIn(windows());
    const session = app.get<ServingOf<typeof averages>>(getServingToken(averages)).open();
    const means = [await session.run(1), await session.run(2), await session.run(6)];

    expect(probabilities).toHaveLength(3);
    expect(new Set(probabilities).size).toBe(3);
    expect(means).toEqual([1, 1.5, 3]);
  });
});

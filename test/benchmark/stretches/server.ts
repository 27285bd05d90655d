import { readFileSync } from 'node:fs';
import { NestFactory } from '@nestjs/core';
import { defineServing, ServingModule } from 'nestjs-serving';
import { InferenceProtocolModule } from 'nestjs-serving/inference-protocol';
import { OpenAIModule } from 'nestjs-serving/openai';
import { rerank, speechToText, textEmbedding, textGeneration } from 'nestjs-serving/tasks';
import { node, onnxModel } from '../../fixtures/models/onnx-writer.js';
import { watchStandstill } from '../harness/standstill.js';

/** The application whose event loop is watched: the tasks with tiny models, so that their own work is all. */

const FIXTURES = 'test/fixtures/tasks';

const read = (path: string): Buffer => readFileSync(`${FIXTURES}/${path}`);

/** Texts of up to 8,192 tokens, by a tokenizer of the kind of Qwen's and GPT's. */
function longTexts(output: string, axes: readonly (string | number)[], width = 1) {
  const ids = { type: 'int64', dims: ['batch', 'tokens'] } as const;
  const wide = output === 'logits';
  const model = onnxModel({
    inputs: { input_ids: ids, attention_mask: ids },
    outputs: { [output]: { type: 'float32', dims: ['batch', ...axes] } },
    nodes: [
      node('Gather', ['table', 'input_ids'], [wide ? 'each' : output]),
      ...(wide ? [node('ReduceMean', ['each'], [output], { axes: [1], keepdims: 0 })] : []),
    ],
    initializers: {
      table: {
        type: 'float32',
        dims: [2000, width],
        data: Float32Array.from({ length: 2000 * width }, (_, i) => Math.sin(i)),
      },
    },
  });
  return {
    from: {
      'config.json': JSON.stringify({ pad_token_id: 0 }),
      'tokenizer.json': read('tokenizers/qwen.json'),
      '1_Pooling/config.json': '{"pooling_mode_mean_tokens":true}',
      'onnx/model.onnx': model,
    },
  };
}

const shared = { tooLong: 'cut', maxTokens: 8192 } as const;
const embedder = textEmbedding({
  ...shared,
  name: 'embedder',
  model: longTexts('last_hidden_state', ['tokens', 1]),
});
const wide = textEmbedding({
  ...shared,
  name: 'wide',
  model: longTexts('last_hidden_state', ['tokens', 1024], 1024),
});
const ranker = rerank({ ...shared, name: 'ranker', model: longTexts('logits', [1]) });
const writer = textGeneration({
  name: 'writer',
  model: { from: `${FIXTURES}/generator`, file: 'onnx/model_gqa.onnx' },
});
const ear = speechToText({ name: 'ear', model: `${FIXTURES}/speech`, temperature: 0 });
const numbers = { type: 'float32', dims: ['batch', 'numbers'] } as const;
const mean = defineServing({
  name: 'mean',
  model: {
    file: onnxModel({
      inputs: { input: numbers },
      outputs: { output: { type: 'float32', dims: ['batch'] } },
      nodes: [node('ReduceMean', ['input'], ['output'], { axes: [1], keepdims: 0 })],
    }),
    checkRows: false,
  },
});
const copy = defineServing({
  name: 'copy',
  model: {
    file: onnxModel({
      inputs: { input: numbers },
      outputs: { output: numbers },
      nodes: [node('Identity', ['input'], ['output'])],
    }),
    checkRows: false,
  },
});
const count = defineServing({
  name: 'count',
  model: {
    useFactory: () => (rows: unknown[]) => rows.map((row) => (Array.isArray(row) ? row.length : 1)),
  },
});

const app = await NestFactory.create(
  {
    module: class {},
    imports: [
      ServingModule.forRoot({ servings: [embedder, wide, ranker, writer, ear, mean, copy, count] }),
      OpenAIModule.forRoot({
        models: { embedder, wide, ranker, writer, ear },
        guards: [],
        bodyLimit: 64 * 2 ** 20,
      }),
      InferenceProtocolModule.forRoot({ guards: [] }),
    ],
  },
  { logger: ['error'] },
);
await app.listen(0, '127.0.0.1');

let end = (): number => 0;
process.on('message', (message) => {
  if (message === 'begin') {
    end = watchStandstill();
    process.send!({});
  } else if (message === 'end') {
    process.send!({ stretch: end() });
  } else {
    process.disconnect();
    void app.close();
  }
});
process.send!({ url: await app.getUrl() });

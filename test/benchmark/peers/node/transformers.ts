import { basename, dirname } from 'node:path';
import Fastify from 'fastify';
import { miniLm } from '../peers.js';
import { loadTransformers } from './transformers-js.js';

interface Transformers {
  readonly pipeline: (task: string, model: string, options: object) => Promise<Pipeline>;
}
type Pipeline = (text: string, options: object) => Promise<{ readonly data: Float32Array }>;

interface Request {
  readonly model: string;
  readonly input: string;
}

/** A call of the pipeline per request. */
const { pipeline } = loadTransformers(dirname(miniLm)) as Transformers;
const extract = await pipeline('feature-extraction', basename(miniLm), { dtype: 'fp32' });

const app = Fastify();
app.post<{ Body: Request }>('/v1/embeddings', async ({ body: { model, input } }) => {
  const { data } = await extract(input, { pooling: 'mean', normalize: true });
  return {
    object: 'list',
    model,
    data: [{ object: 'embedding', index: 0, embedding: Array.from(data) }],
  };
});
await app.listen({ port: Number(process.env['PORT']) });

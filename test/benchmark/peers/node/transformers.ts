import { createRequire } from 'node:module';
import { basename, dirname, join } from 'node:path';
import Fastify from 'fastify';
import { folder, miniLm } from '../peers.js';

/** What we use of `@huggingface/transformers`, which is not installed in this repository. */
interface Transformers {
  readonly env: { allowRemoteModels: boolean; localModelPath: string };
  readonly pipeline: (task: string, model: string, options: object) => Promise<Pipeline>;
}
type Pipeline = (text: string, options: object) => Promise<{ readonly data: Float32Array }>;

interface Request {
  readonly model: string;
  readonly input: string;
}

/** A call of the pipeline per request. */
const require = createRequire(join(folder, 'transformers.js', 'package.json'));
const { env, pipeline } = require('@huggingface/transformers') as Transformers;
env.allowRemoteModels = false;
env.localModelPath = dirname(miniLm);
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

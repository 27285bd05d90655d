import Fastify from 'fastify';
import { openModel, port, type Row } from './model.js';

/** A run per request, on the main thread. */
const run = await openModel();
const app = Fastify();
app.post<{ Body: Row }>('/predict', ({ body }) => run(body));
await app.listen({ port });

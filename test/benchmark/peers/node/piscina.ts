import Fastify from 'fastify';
import { Piscina } from 'piscina';
import { port, type Row } from './model.js';

/** A run per request, in two threads with a session each. */
const filename = new URL('./piscina.task.js', import.meta.url).href;
const pool = new Piscina({ filename, minThreads: 2, maxThreads: 2 });
const app = Fastify();
app.post<{ Body: Row }>('/predict', ({ body }) => pool.run(body));
await app.listen({ port });

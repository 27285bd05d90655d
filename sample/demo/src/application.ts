import type { Server } from 'node:http';
import type { INestApplication } from '@nestjs/common';
import { Test, type TestingModuleBuilder } from '@nestjs/testing';
import { getServingToken } from 'nestjs-serving';
import type { Sample } from './samples.js';
import { unbatched } from './unbatched.js';

export function batchedApplication({ module }: Sample): Promise<INestApplication> {
  return listen(Test.createTestingModule({ imports: [module] }));
}

/** The same application, but for the serving. */
export async function unbatchedApplication({
  module,
  definition,
}: Sample): Promise<INestApplication> {
  const serving = await unbatched(definition);
  return listen(
    Test.createTestingModule({ imports: [module] })
      .overrideProvider(getServingToken(definition))
      .useValue(serving),
  );
}

async function listen(builder: TestingModuleBuilder): Promise<INestApplication> {
  const testing = await builder.compile();
  const app = testing.createNestApplication<INestApplication<Server>>({
    logger: ['error', 'warn'],
  });
  // One by one, requests on a slow machine wait for longer than the 5 s after which Node closes idle
  // connections.
  app.getHttpServer().keepAliveTimeout = 0;
  await app.listen(0, '127.0.0.1');
  return app;
}

import { describe, expect, it } from '@jest/globals';
import { ServingLoadError } from 'nestjs-serving';
import { endpoint } from 'nestjs-serving/inference-protocol';
import { failureOf } from '../../../fixtures/async/failure-of.js';
import { passTime, useVirtualTime } from '../../../fixtures/async/virtual-time.js';
import { never } from '../../../fixtures/endpoints/scripted-endpoint.js';
import { useServings } from '../../../fixtures/serving/use-servings.js';

describe('The metadata function of an endpoint', () => {
  const start = useServings();
  useVirtualTime();

  it('[E5] has ten seconds when the serving starts', async () => {
    const model = endpoint({ url: 'grpc://127.0.0.1:1', metadata: () => never });
    const error = await passTime(failureOf(start({ name: 'a', model })), 1_000);
    expect(error).toBeInstanceOf(ServingLoadError);
    expect((error as Error).message).toContain(
      'its metadata function did not answer within 10000 ms',
    );
  });
});

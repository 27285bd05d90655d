import { describe, expect, it } from '@jest/globals';
import { Observable } from 'rxjs';
import { Batch, Tensor } from 'nestjs-serving';
import { iterated, outputsOf } from '../../fixtures/async/streams.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

const scratch = new Float32Array(1);
const list = [0];

/** Values that are all written into the same memory. */
function* reused<T>(value: T): Generator<T> {
  for (const each of [1, 2, 3]) {
    scratch[0] = list[0] = each;
    yield value;
  }
}

async function* asynchronous<T>(value: T): AsyncGenerator<T> {
  yield* reused(value);
}

const observable = <T>(value: T): Observable<T> =>
  new Observable((subscriber) => {
    for (const each of reused(value)) {
      subscriber.next(each);
    }
    subscriber.complete();
  });

describe('A lazy input that uses its memory again', () => {
  const start = useServings();

  it.each([
    ['a generator', reused],
    ['an asynchronous generator', asynchronous],
    ['an Observable', observable],
  ])('[FR7] The values of %s are read when they are pulled', async (_, sequenceOf) => {
    const serving = await start({
      name: 'same',
      batchSize: 2,
      model: { useFactory: () => (rows: unknown) => rows },
    });
    const tensor = new Tensor('float32', scratch, [1, 1]);

    const outputs = outputsOf(await iterated(serving.stream(sequenceOf(tensor))));
    expect(outputs.map((output) => [...((output as Tensor).data as Float32Array)])).toEqual([
      [1],
      [2],
      [3],
    ]);
    const reply = await serving.batchedRun(sequenceOf(Batch.concatenate([tensor])));
    expect([...((reply as Tensor).data as Float32Array)]).toEqual([1, 2, 3]);
    expect(outputsOf(await iterated(serving.stream(sequenceOf({ list }))))).toEqual([
      [{ list: [1] }],
      [{ list: [2] }],
      [{ list: [3] }],
    ]);
  });
});

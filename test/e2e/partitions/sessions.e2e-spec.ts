import { describe, expect, it } from '@jest/globals';
import { InvalidServingError, SessionEndedError, Tensor } from 'nestjs-serving';
import { recurrentModel, summingModel, value } from '../../fixtures/models/models.js';
import { node, onnxModel } from '../../fixtures/models/onnx-writer.js';
import { worker } from '../../fixtures/partitions/worker.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { floats } from '../../fixtures/values/tensors.js';

const isolations = ['thread', 'process'] as const;
const tally = { name: 'tally', model: { useFile: worker('tally'), sessions: {} }, partitions: 2 };
const rate = new Tensor('int64', [8n], []);
const step = (...x: number[]): { x: Tensor; rate: Tensor } => ({ x: floats([1, 3], x), rate });

describe('Sessions', () => {
  const serve = useServings();

  it.each(isolations)(
    '[16.1] [16.3] Their state stays in the %s of a module file',
    async (isolation) => {
      const serving = await serve<readonly string[]>({
        ...tally,
        model: { ...tally.model, isolation },
      });
      const sessions = Array.from({ length: 6 }, () => serving.open());

      for (const row of ['1', '2']) {
        await Promise.all(sessions.map((session) => session.run(row)));
      }
      await expect(sessions[0]!.run('fail')).rejects.toThrow('a row fails');
      await expect(sessions[1]!.run('throw')).rejects.toThrow('a row throws');

      expect(await Promise.all(sessions.map((session) => session.run('3')))).toEqual(
        sessions.map(() => ['1', '2', '3']),
      );
    },
  );

  it.each([
    ['process', 'die', false],
    ['thread', 'exit', false],
    ['process', 'die', true],
  ] as const)(
    '[16.7] A session whose %s dies (%s, idempotent: %s) has ended, and others go on',
    async (isolation, death, idempotent) => {
      const recovery = { restartDelay: 0, idempotent };
      const serving = await serve<readonly string[]>({
        ...tally,
        model: { ...tally.model, isolation },
        recovery,
      });
      const [first, second, third] = [serving.open(), serving.open(), serving.open()];
      await Promise.all([first, second, third].map((session) => session.run('1')));

      await expect(first.run(death)).rejects.toThrow(SessionEndedError);
      await expect(first.run('2')).rejects.toThrow('The session has ended: its state is lost');
      await expect(third.run('2')).rejects.toThrow(
        'The session has ended: its state is lost, since the thread or process of its partition was ' +
          'started again; open another one',
      );
      await expect(third.run('2')).rejects.toThrow(SessionEndedError);
      expect(await second.run('2')).toEqual(['1', '2']);
      await Promise.all([first.close(), third.close()]);
      expect(await serving.open().run('1')).toEqual(['1']);
    },
  );

  it.each(['none', ...isolations] as const)(
    '[16.8] A model keeps its state tensors by session, with isolation %s',
    async (isolation) => {
      const serving = await serve<Record<string, Tensor>>({
        name: 'net',
        model: {
          file: recurrentModel(2, 'n'),
          state: { state: 'next' },
          fetches: ['y', 'next'],
          isolation,
        },
      });
      expect(serving.signature?.inputs.map(({ name }) => name)).toEqual(['x', 'rate']);
      const [a, b] = [serving.open(), serving.open()];

      const [firstOfA] = await Promise.all([a.run(step(1, 2, 3)), b.run(step(10, 20, 30))]);
      const [secondOfB, secondOfA] = await Promise.all([
        b.run(step(1, 1, 1)),
        a.run(step(1, 1, 1)),
      ]);

      expect(firstOfA['next']).toEqual(floats([2, 1, 3], [1, 2, 3, 1, 2, 3]));
      expect(secondOfA['next']).toEqual(floats([2, 1, 3], [2, 3, 4, 2, 3, 4]));
      expect(secondOfB['next']).toEqual(floats([2, 1, 3], [11, 21, 31, 11, 21, 31]));
      expect(secondOfB['y']).toEqual(floats([1, 3], [8, 8, 8]));
      await Promise.all([a.close(), b.close()]);
      expect((await serving.open().run(step(1, 2, 3)))['next']).toEqual(firstOfA['next']);
    },
  );

  it('[16.8] The state is no part of the reply, unless it is fetched', async () => {
    const serving = await serve<Record<string, Tensor>>({
      name: 'net',
      model: { file: recurrentModel(2, 'n'), state: { state: 'next' } },
    });

    expect(Object.keys(await serving.open().run(step(1, 2, 3))).toSorted()).toEqual(['used', 'y']);
  });

  it.each([
    ['any number of rows', 'n', {}],
    ['a fixed number of rows', 2, {}],
    ['allowed sizes', 'n', { batchSize: [4, 8] }],
  ])('[16.8] States are kept in a model of %s', async (_, batch, own) => {
    const [file, rows] = [summingModel(batch), { batchAxis: 0 }];
    const serving = await serve<{ y: Tensor }>({
      name: 'sums',
      model: { file, inputs: { x: rows, sum: rows }, state: { sum: 'total' } },
      ...own,
    });
    const sessions = Array.from({ length: 5 }, () => serving.open());
    const runAll = (): Promise<{ y: Tensor }[]> =>
      Promise.all(sessions.map((each, i) => each.run({ x: floats([1, 2], [i, 1]) })));

    await runAll();
    await runAll();

    expect((await runAll()).map(({ y }) => y)).toEqual(
      sessions.map((_session, i) => floats([1, 2], [3 * i, 3])),
    );
  });

  it.each([
    [{ wrong: 'total' }, 'model.state names the input "wrong"; the model has x, sum'],
    [{ sum: 'wrong' }, 'model.state names the output "wrong"; the model has y, total'],
    [
      { x: 'y', sum: 'total' },
      'All inputs or all outputs of the model are states, so that a step has no input or no result',
    ],
  ])('[16.8] A state that the model does not have fails the start: %j', async (state, message) => {
    const definition = { name: 'sums', model: { file: summingModel('n'), state } };

    await expect(serve(definition)).rejects.toThrow(InvalidServingError);
    await expect(serve(definition)).rejects.toThrow(message);
  });

  it.each([
    [
      'of another shape',
      value('float32', 'n', 3),
      'model.state joins the input state: float32[n, 3] and the output y: float32[n, 2], which ' +
        'differ in type or shape',
    ],
    [
      'of any size',
      value('float32', 'n', 'm'),
      'The input state: float32[n, m] is a state, and axis 1 may have any size; states ' +
        'begin as zeros of one size',
    ],
    [
      'without rows',
      value('float32', 2),
      'The input state: float32[2] is a state, and none of its axes counts rows',
    ],
  ])('[16.8] A state %s fails the start', async (_, state, message) => {
    const file = onnxModel({
      inputs: { x: value('float32', 'n', 2), state },
      outputs: { y: value('float32', 'n', 2), z: value('float32', 'n', 2) },
      nodes: [node('Add', ['x', 'x'], ['y']), node('Add', ['x', 'x'], ['z'])],
    });

    await expect(serve({ name: 'net', model: { file, state: { state: 'y' } } })).rejects.toThrow(
      message,
    );
  });

  it('[16.8] Sessions of a model without state fail the start', async () => {
    await expect(
      serve({ name: 'net', model: { file: recurrentModel(2, 'n'), sessions: {} } }),
    ).rejects.toThrow(
      "sessions need the state that they keep; name the inputs and outputs of the model that are one: model: { file, state: { input: 'output' } }",
    );
  });
});

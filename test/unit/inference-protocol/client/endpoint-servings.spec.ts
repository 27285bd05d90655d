import { setImmediate as turn } from 'node:timers/promises';
import { afterEach, describe, expect, it } from '@jest/globals';
import { ServerCredentials } from '@grpc/grpc-js';
import {
  BatchFailedError,
  DeadlineExceededError,
  InvalidOutputError,
  InvalidServingError,
  type LocalServing,
  PartitionLostError,
  RequestTooLargeError,
  RunTimeoutError,
  ServingLoadError,
  ServingUnavailableError,
  Tensor,
} from 'nestjs-serving';
import {
  endpoint as modelOn,
  type EndpointModel,
  type Endpoints,
} from 'nestjs-serving/inference-protocol';
import { failureOf } from '../../../fixtures/async/failure-of.js';
import { until } from '../../../fixtures/async/awaited.js';
import {
  type Answer,
  cancelled,
  doubled,
  never,
  ScriptedEndpoint,
} from '../../../fixtures/endpoints/scripted-endpoint.js';
import { describeWithCertificate } from '../../../fixtures/cluster/certificates.js';
import { recordWarnings } from '../../../fixtures/recorded-warnings.js';
import { useEndpoints } from '../../../fixtures/endpoints/use-endpoints.js';
import { useServings } from '../../../fixtures/serving/use-servings.js';

type Reply = Record<string, Tensor>;

const row = (value: number) => ({ x: new Tensor('float32', [value, 0], [1, 2]) });
/** Resolves when a connection that has ended in this process is known to have. */
async function noticed(): Promise<void> {
  for (let turns = 0; turns < 50; turns++) {
    await turn();
  }
}
const status = (code: number, details = 'scripted'): Answer => ({ code, details });

const call = async (
  serving: LocalServing<unknown, Reply>,
  value: number,
  options?: object,
): Promise<number> => (await serving.batchedRun(row(value), options)).y!.data[0] as number;

const float32 = (bytes: Buffer): Float32Array => new Float32Array(Uint8Array.from(bytes).buffer);
const wide = (elements: number) => ({
  x: new Tensor('float32', new Float32Array(elements).fill(3), [elements / 40, 40]),
});
const withoutToken = () => {
  throw new Error('no token');
};

describe('a serving with an endpoint', () => {
  const open = useEndpoints();
  const start = useServings();

  const serve = (
    endpoint: ScriptedEndpoint | readonly ScriptedEndpoint[],
    {
      model,
      servers = [endpoint].flat().map(({ url }) => url),
      ...options
    }: {
      readonly model?: string | EndpointModel;
      readonly servers?: Endpoints;
      readonly [option: string]: unknown;
    } = {},
  ): Promise<LocalServing<unknown, Reply>> =>
    start<Reply>({
      name: 'double',
      model: modelOn(servers, model),
      recovery: { restartDelay: 0 },
      ...options,
    });
  it('[19.1] forms batches here and gives each caller its own rows', async () => {
    const endpoint = await open();
    const serving = await serve(endpoint, { batchTimeout: 20, batchSize: 8 });
    const replies = await Promise.all([1, 2, 3, 4, 5, 6, 7, 8].map((each) => call(serving, each)));
    expect(replies).toEqual([2, 4, 6, 8, 10, 12, 14, 16]);
    expect(endpoint.calls.map(({ request }) => request.inputs[0]!.shape)).toEqual([['8', '2']]);
    expect(endpoint.asked).toContain('double/');
  });

  it('[19.1] gives each caller its own rows while batches of all sizes run, fail and are cancelled', async () => {
    const endpoint = await open();
    endpoint.script.inputs = [
      { name: 'b', datatype: 'UINT8', shape: [-1, 3] },
      { name: 'a', datatype: 'FP32', shape: [-1, 2] },
    ];
    endpoint.script.answer = async ({ raw_input_contents: [b, a], inputs }) => {
      const [marks, numbers] = [b!, float32(a!)];
      await turn();
      if (numbers.includes(-1)) {
        return status(3, 'a row is -1');
      }
      const sums = numbers.map((number, i) => number + marks[Math.floor(i / 2) * 3]!);
      return {
        outputs: [{ name: 'y', datatype: 'FP32', shape: inputs[1]!.shape }],
        raw_output_contents: [Buffer.from(sums.buffer)],
      };
    };
    const serving = await serve(endpoint, { batchSize: 8 });
    const ask = async (n: number): Promise<unknown> => {
      const [rows, fails, leaves] = [1 + (n % 5), n % 11 === 0, n % 7 === 0];
      const first = fails ? -1 : n;
      const numbers = Float32Array.from({ length: 2 * rows }, (_, i) => first + i * 1000);
      const leaving = new AbortController();
      const running = serving.batchedRun(
        {
          a: new Tensor('float32', numbers, [rows, 2]),
          b: new Tensor('uint8', new Uint8Array(3 * rows).fill(n), [rows, 3]),
        },
        { signal: leaving.signal },
      );
      if (leaves) {
        await turn();
        leaving.abort();
      }
      return running.then(
        ({ y }) => expect(y!.data).toEqual(numbers.map((number) => number + n)),
        (error: Error) => expect(fails || leaves ? 'expected' : error.message).toBe('expected'),
      );
    };
    for (let round = 0; round < 10; round++) {
      await Promise.all(Array.from({ length: 3 * round + 1 }, (_, i) => ask(20 * round + i)));
    }
  });

  it('[19.1] sends runs of run() one by one', async () => {
    const serving = await serve(await open());
    const reply = await serving.run(row(4));
    expect([...(reply.y!.data as Float32Array)]).toEqual([8, 0]);
  });

  it('[19.2] names the model and the version, and reads names, types and axes at the start', async () => {
    const endpoint = await open();
    const serving = await serve(endpoint, { model: 'other', rollout: { version: '7' } });
    expect(serving.signature).toEqual({
      inputs: [{ name: 'x', type: 'float32', shape: [null, 2], batchAxis: 0 }],
      outputs: [{ name: 'y', type: 'float32', shape: [null, 2], batchAxis: 0 }],
    });
    await call(serving, 1);
    const [{ request }] = endpoint.calls as [ScriptedEndpoint['calls'][number]];
    expect([request.model_name, request.model_version]).toEqual(['other', '7']);
    expect(new Set(endpoint.asked)).toEqual(new Set(['other/7']));
  });

  it('[19.2] reloads another version of the server, or sends it a share of the calls', async () => {
    const endpoint = await open();
    const serving = await serve(endpoint, { rollout: { version: '7' } });
    const versionOf = async (options?: object): Promise<string | undefined> => {
      await call(serving, 1, options);
      return endpoint.calls.at(-1)!.request.model_version;
    };

    const canary = await serving.reload({ version: '8', canary: 0 });
    expect([await versionOf(), await versionOf({ version: '8' })]).toEqual(['7', '8']);
    await canary.promote();
    expect(await versionOf()).toBe('8');

    await expect(serving.reload()).rejects.toThrow("name one: reload({ version: '2' })");
    await expect(serving.reload({ version: '9', model: 'other.onnx' })).rejects.toThrow(
      "name another version of it: reload({ version: '2' })",
    );
  });

  it('[19.2] refuses rows unlike the inputs of the model on the server', async () => {
    const serving = await serve(await open());
    const wrong = new Tensor('int32', [1, 2], [1, 2]);
    await expect(serving.batchedRun({ x: wrong })).rejects.toThrow(/x" is int32 and must be float/);
  });

  it('[19.2] sends no more rows than max_batch_size', async () => {
    const endpoint = await open();
    endpoint.script.maxBatchSize = 3;
    const serving = await serve(endpoint, { batchTimeout: 20 });
    await Promise.all([1, 2, 3, 4, 5, 6, 7].map((each) => call(serving, each)));
    const rows = endpoint.calls.map(({ request }) => Number(request.inputs[0]!.shape[0]));
    expect(Math.max(...rows)).toBe(3);
  });

  it('[19.2] refuses a batchSize above max_batch_size at boot', async () => {
    const endpoint = await open();
    endpoint.script.maxBatchSize = 3;
    await expect(serve(endpoint, { batchSize: 4 })).rejects.toThrow(
      /batches of 4 rows are more than the max_batch_size of the model on its server, 3/,
    );
  });

  it('[19.2] runs one call at a time for a model with max_batch_size 0', async () => {
    const endpoint = await open();
    endpoint.script.maxBatchSize = 0;
    const serving = await serve(endpoint, { batchTimeout: 20 });
    await Promise.all([1, 2].map((each) => call(serving, each)));
    expect(endpoint.calls.length).toBe(2);
  });

  it('[19.2] runs a model with a fixed batch in steps of it', async () => {
    const endpoint = await open();
    endpoint.script.inputs = [{ name: 'x', datatype: 'FP32', shape: [2, 2] }];
    endpoint.script.outputs = [{ name: 'y', datatype: 'FP32', shape: [2, 2] }];
    const serving = await serve(endpoint, {
      batchTimeout: 20,
      model: { inputs: { x: { batchAxis: 0 } } },
    });
    expect(await Promise.all([1, 2, 3].map((each) => call(serving, each)))).toEqual([2, 4, 6]);
    endpoint.calls.forEach(({ request }) => expect(request.inputs[0]!.shape).toEqual(['2', '2']));
  });

  it('[19.2] fetches other outputs only for calls that ask for them', async () => {
    const endpoint = await open();
    endpoint.script.outputs = ['y', 'z'].map((name) => ({
      name,
      datatype: 'FP32',
      shape: [-1, 2],
    }));
    endpoint.script.answer = (request) => {
      const [y] = (doubled(request) as { raw_output_contents: Buffer[] }).raw_output_contents;
      return {
        outputs: request.outputs!.map(({ name }) => ({
          name,
          datatype: 'FP32',
          shape: request.inputs[0]!.shape,
        })),
        raw_output_contents: request.outputs!.map(() => y!),
      };
    };
    const serving = await serve(endpoint, { model: { fetches: ['y'] } });
    expect(Object.keys(await serving.batchedRun(row(1)))).toEqual(['y']);
    const events = [];
    for await (const event of serving.stream(row(3), { hooks: ['z'] })) {
      events.push(event);
    }
    expect(events.map((event) => 'hook' in event)).toEqual([true, false]);
    const names = endpoint.calls.map(({ request }) => request.outputs!.map(({ name }) => name));
    expect(names).toEqual([['y'], ['y', 'z']]);
  });

  it('[19.3] shares batches among endpoints by their concurrency', async () => {
    const [a, b] = [await open(), await open()];
    const hold = { answer: () => never };
    Object.assign(a.script, hold);
    Object.assign(b.script, hold);
    const serving = await serve(a, {
      servers: [
        { url: a.url, concurrency: 1 },
        { url: b.url, concurrency: 3 },
      ],
      batchSize: 1,
    });
    const signal = new AbortController();
    const calls = Array.from({ length: 6 }, (_, i) =>
      failureOf(call(serving, i, { signal: signal.signal })),
    );
    await until(() => a.calls.length + b.calls.length === 4);
    expect([a.calls.length, b.calls.length]).toEqual([1, 3]);
    expect(serving.queued).toBe(2);
    signal.abort();
    await Promise.all(calls);
  });

  it('[19.3] refuses endpoints with different models at boot', async () => {
    const [a, b] = [await open(), await open()];
    b.script.outputs = [{ name: 'y', datatype: 'FP64', shape: [-1, 2] }];
    await expect(serve([a, b])).rejects.toThrow(
      `The endpoints ${a.url} and ${b.url} have models with different inputs or outputs`,
    );
  });

  it('[19.4] fails the boot with address and reason where no server is', async () => {
    const endpoint = await open();
    endpoint.kill();
    const error = await failureOf(serve(endpoint));
    expect(error).toBeInstanceOf(ServingLoadError);
    expect((error as Error).message).toContain(endpoint.url);
    expect((error as Error).message).toContain('ECONNREFUSED');
  });

  it('[19.4] fails the boot where the server states that the model is not ready', async () => {
    const endpoint = await open();
    endpoint.script.ready = false;
    await expect(serve(endpoint, { model: 'm' })).rejects.toThrow(
      `The model "m" of the endpoint ${endpoint.url} cannot be used: the server states that it ` +
        'is not ready',
    );
  });

  it('[19.12] boots while one of several servers is down, and uses that once it is there', async () => {
    const [up, down] = [await open(), await open()];
    down.kill();
    const warnings = recordWarnings();
    const serving = await serve([up, down], {
      batchSize: 1,
      recovery: { restartDelay: 0, maxRestarts: 1e6 },
    });
    expect(warnings.filter((each) => each.includes(down.url))).toEqual([
      expect.stringMatching(/^Serving "double" does not use the endpoint .*ECONNREFUSED/),
    ]);
    const states = () => serving.partitions().map(({ state }) => state);
    expect(states().toSorted()).toEqual(['restarting', 'restarting', 'up', 'up']);
    expect(await Promise.all([1, 2, 3].map((each) => call(serving, each)))).toEqual([2, 4, 6]);

    await down.open();
    await until(() => states().every((state) => state === 'up'));
    await Promise.all([1, 2, 3, 4].map((each) => call(serving, each)));
    expect(down.calls.length).toBeGreaterThan(0);
  });

  it('[19.12] warms up a server that was down at the boot before it gets rows', async () => {
    const [up, down] = [await open(), await open()];
    down.script.ready = false;
    const serving = await serve([up, down], {
      recovery: { restartDelay: 0, maxRestarts: 1e6 },
      warmUp: [row(7)],
    });
    expect(down.calls).toEqual([]);
    down.script.ready = true;
    await until(() => serving.partitions().every(({ state }) => state === 'up'));
    expect(down.calls.length).toBeGreaterThan(0);
  });

  it('[19.12] does not use a server with another model that was down at the boot', async () => {
    const [up, down] = [await open(), await open()];
    down.kill();
    const serving = await serve([up, down], {
      recovery: { restartDelay: 0, maxRestarts: 1e6 },
    });
    down.script.inputs = [{ name: 'x', datatype: 'FP32', shape: [-1, 3] }];
    await down.open();
    const reasons = () => serving.partitions().map(({ reason = '' }) => reason);
    await until(() => reasons().some((reason) => reason.includes('other inputs or outputs')));
    expect(await call(serving, 3)).toBe(6);
  });

  it('[19.12] fails the boot where one of several servers states a model that cannot be used', async () => {
    const [up, other] = [await open(), await open()];
    other.script.inputs = [];
    await expect(serve([up, other])).rejects.toThrow(InvalidServingError);
  });

  it('[19.12] fails the boot where all servers are down', async () => {
    const [a, b] = [await open(), await open()];
    a.kill();
    b.kill();
    await expect(serve([a, b])).rejects.toThrow(a.url);
  });

  it.each([
    [[], 'states no inputs or no outputs'],
    [[{ name: 'x', datatype: 'BF16', shape: [-1, 2] }], 'BF16'],
    [[{ name: 'x', datatype: 'FP31', shape: [-1, 2] }], 'FP31'],
  ])('[19.4] fails the boot where the server states the inputs %j', async (inputs, reason) => {
    const endpoint = await open();
    endpoint.script.inputs = inputs;
    const error = await failureOf(serve(endpoint));
    expect(error).toBeInstanceOf(InvalidServingError);
    expect((error as Error).message).toContain(reason);
  });

  it('[19.5] sends what is left of the latest deadline, and the highest priority', async () => {
    const endpoint = await open();
    const serving = await serve(endpoint, { batchTimeout: 10 });
    await Promise.all([
      call(serving, 1, { timeout: 20_000, priority: -1 }),
      call(serving, 2, { timeout: 40_000, priority: 1 }),
    ]);
    const [each] = endpoint.calls;
    const { timeout, priority } = each!.request.parameters!;
    expect(priority!.int64_param).toBe('2');
    expect(Number(timeout!.int64_param)).toBeGreaterThan(20_000_000);
    expect(Number(timeout!.int64_param)).toBeLessThan(40_000_000);
    const deadline = Number(each!.getDeadline()) - Date.now();
    expect(deadline).toBeGreaterThan(20_000);
    expect(deadline).toBeLessThan(40_200);
  });

  it('[19.5] sends no terms where a caller has none', async () => {
    const endpoint = await open();
    const serving = await serve(endpoint, { batchTimeout: 10 });
    await Promise.all([call(serving, 1, { timeout: 20_000 }), call(serving, 2)]);
    expect(endpoint.calls[0]!.request.parameters).toEqual({});
    expect(endpoint.calls[0]!.getDeadline()).toBe(Infinity);
  });

  it('[19.5] cancels the batch on the server once all its callers have left', async () => {
    const endpoint = await open();
    endpoint.script.answer = () => never;
    const serving = await serve(endpoint, { batchTimeout: 10 });
    const [one, two] = [new AbortController(), new AbortController()];
    const calls = [one, two].map(({ signal }, i) => failureOf(call(serving, i, { signal })));
    await until(() => endpoint.calls.length === 1);
    const [each] = endpoint.calls;
    one.abort();
    await calls[0];
    expect(each!.cancelled).toBe(false);
    two.abort();
    await cancelled(each!);
    await calls[1];
    endpoint.script.answer = doubled;
    expect(await call(serving, 1)).toBe(2);
    expect(endpoint.calls.length).toBe(2);
    expect(serving.partitions().map(({ restarts }) => restarts)).toEqual([0, 0]);
  });

  it('[19.5] ends a call at its deadline, with the batch on the server', async () => {
    const endpoint = await open();
    endpoint.script.answer = () => never;
    const serving = await serve(endpoint);
    // A slow machine needs longer until the call is on the server.
    for (let timeout = 50; endpoint.calls.length === 0; timeout *= 2) {
      const error = await failureOf(call(serving, 1, { timeout }));
      expect(error).toBeInstanceOf(DeadlineExceededError);
    }
    await cancelled(endpoint.calls[0]!);
    expect(serving.partitions().map(({ state }) => state)).toEqual(['up', 'up']);
  });

  it('[19.5] cancels a batch that takes longer than runTimeout', async () => {
    const endpoint = await open();
    endpoint.script.answer = () => never;
    const serving = await serve(endpoint, {
      recovery: { restartDelay: 0, runTimeout: 500, retries: 0 },
    });
    await expect(call(serving, 1)).rejects.toThrow(RunTimeoutError);
    await cancelled(endpoint.calls[0]!);
    endpoint.script.answer = doubled;
    expect(await call(serving, 1)).toBe(2);
  });

  it('[19.6] runs a batch elsewhere that a server did not get, idempotent or not', async () => {
    const [a, b] = [await open(), await open()];
    const serving = await serve([a, b], { recovery: { idempotent: false } });
    a.kill();
    await noticed();
    const replies = await Promise.all([1, 2, 3, 4].map((each) => call(serving, each)));
    expect(replies).toEqual([2, 4, 6, 8]);
    expect(serving.partitions().map(({ state }) => state)).toContain('restarting');
    expect(serving.partitions().some(({ reason = '' }) => reason.includes('ECONNREFUSED'))).toBe(
      true,
    );
  });

  it.each([
    [1, 'CANCELLED'],
    [4, 'DEADLINE_EXCEEDED'],
    [8, 'RESOURCE_EXHAUSTED'],
    [14, 'UNAVAILABLE'],
  ])('[19.6] runs an idempotent batch again after status %i %s', async (code) => {
    const endpoint = await open();
    let runs = 0;
    endpoint.script.answer = (request) => (++runs === 1 ? status(code) : doubled(request));
    const serving = await serve(endpoint);
    expect(await call(serving, 3)).toBe(6);
    expect(runs).toBe(2);
  });

  it('[19.6] fails a batch that may have run and is not idempotent', async () => {
    const endpoint = await open();
    endpoint.script.answer = () => status(14, 'gone');
    const serving = await serve(endpoint, { recovery: { idempotent: false, restartDelay: 0 } });
    const error = await failureOf(call(serving, 3));
    expect(error).toBeInstanceOf(PartitionLostError);
    expect((error as Error).message).toBe(
      `Serving "double": The endpoint ${endpoint.url} failed with UNAVAILABLE: gone`,
    );
    expect(endpoint.calls.length).toBe(1);
  });

  it('[19.6] loses the batch of a server that is killed, and connects to its successor', async () => {
    const endpoint = await open();
    endpoint.script.answer = () => never;
    const serving = await serve(endpoint, {
      recovery: { idempotent: false, restartDelay: 0, maxRestarts: 1e6 },
    });
    const lost = failureOf(call(serving, 3));
    await until(() => endpoint.calls.length === 1);
    endpoint.kill();
    expect(await lost).toBeInstanceOf(PartitionLostError);
    endpoint.script.answer = doubled;
    await endpoint.open();
    expect(await call(serving, 4)).toBe(8);
  });

  it('[19.6] refuses a successor with other inputs, and says so', async () => {
    const endpoint = await open();
    const serving = await serve(endpoint, { recovery: { restartDelay: 0, maxRestarts: 0 } });
    endpoint.script.answer = () => status(5);
    endpoint.script.inputs = [{ name: 'x', datatype: 'FP32', shape: [-1, 3] }];
    const error = await failureOf(call(serving, 4));
    expect(error).toBeInstanceOf(ServingUnavailableError);
  });

  it('[19.6] opens the circuit when the server stays away', async () => {
    const endpoint = await open();
    const serving = await serve(endpoint, { recovery: { restartDelay: 0, maxRestarts: 1 } });
    endpoint.kill();
    const error = await failureOf(call(serving, 4));
    expect(error).toBeInstanceOf(ServingUnavailableError);
    expect((error as Error).message).toContain('ECONNREFUSED');
    expect(serving.partitions().map(({ state }) => state)).toEqual(['lost', 'lost']);
  });

  it('[19.7] finds the row that the model fails on', async () => {
    const endpoint = await open();
    endpoint.script.answer = (request) => {
      const answer = doubled(request);
      const rows = new Float32Array(Uint8Array.from(request.raw_input_contents[0]!).buffer);
      return rows.includes(-1) ? status(3, 'a row is -1') : answer;
    };
    const serving = await serve(endpoint, { batchTimeout: 10 });
    const calls = [1, 2, -1, 4].map((each) =>
      call(serving, each).catch((error: unknown) => error as BatchFailedError),
    );
    const [one, two, error, four] = await Promise.all(calls);
    expect([one, two, four]).toEqual([2, 4, 8]);
    expect(error).toBeInstanceOf(BatchFailedError);
    expect((error as Error).message).toContain('INVALID_ARGUMENT: a row is -1');
    expect(serving.partitions().map(({ restarts }) => restarts)).toEqual([0, 0]);
  });

  it('[19.7] runs a batch in halves that is too large for a message of the server', async () => {
    const endpoint = await open({ 'grpc.max_receive_message_length': 300 });
    endpoint.script.inputs = [{ name: 'x', datatype: 'FP32', shape: [-1, 40] }];
    endpoint.script.outputs = [{ name: 'y', datatype: 'FP32', shape: [-1, 40] }];
    const serving = await serve(endpoint, { batchTimeout: 10 });
    const [one, two] = await Promise.all([1, 2].map(() => serving.batchedRun(wide(40))));
    expect([one!.y!.data[0], two!.y!.data[0]]).toEqual([6, 6]);
    expect(endpoint.calls.length).toBe(2);
    const whole = serving.batchedRun(wide(400), { timeout: 5000 });
    expect((await whole).y!.dims).toEqual([10, 40]);
  });

  it('[19.7] refuses a row that is too large for a message of the server', async () => {
    const endpoint = await open({ 'grpc.max_receive_message_length': 400 });
    endpoint.script.inputs = [{ name: 'x', datatype: 'FP32', shape: [-1, 400] }];
    const serving = await serve(endpoint);
    const x = new Tensor('float32', new Float32Array(400), [1, 400]);
    await expect(serving.batchedRun({ x })).rejects.toThrow(RequestTooLargeError);
  });

  it.each<[string, Answer, RegExp]>([
    ['of no outputs', { outputs: [], raw_output_contents: [] }, /"outputs.y" in .* is missing/],
    [
      'of another output',
      {
        outputs: [{ name: 'q', datatype: 'FP32', shape: [1, 2] }],
        raw_output_contents: [Buffer.alloc(8)],
      },
      /"outputs.y" in .* is missing/,
    ],
    [
      'of another type',
      {
        outputs: [{ name: 'y', datatype: 'INT32', shape: [1, 2] }],
        raw_output_contents: [Buffer.alloc(8)],
      },
      /"outputs.y" in .* is int32 and must be float32/,
    ],
    [
      'of too few bytes',
      {
        outputs: [{ name: 'y', datatype: 'FP32', shape: [1, 2] }],
        raw_output_contents: [Buffer.alloc(7)],
      },
      /"outputs.y" in .* has 7 bytes/,
    ],
    [
      'of too many rows',
      {
        outputs: [{ name: 'y', datatype: 'FP32', shape: [2, 2] }],
        raw_output_contents: [Buffer.alloc(16)],
      },
      /axis 0 must have the 1 row/,
    ],
    [
      '[P9] of another size',
      {
        outputs: [{ name: 'y', datatype: 'FP32', shape: [1, 3] }],
        raw_output_contents: [Buffer.alloc(12)],
      },
      /"outputs.y" in .* has the shape \[1, 3\], and the server stated \[-1, 2\]/,
    ],
    [
      '[P9] of another rank',
      {
        outputs: [{ name: 'y', datatype: 'FP32', shape: [1, 2, 1] }],
        raw_output_contents: [Buffer.alloc(8)],
      },
      /"outputs.y" in .* has the shape \[1, 2, 1\]/,
    ],
    [
      'of a negative shape',
      {
        outputs: [{ name: 'y', datatype: 'FP32', shape: [-1, 2] }],
        raw_output_contents: [Buffer.alloc(8)],
      },
      /has an axis of -1/,
    ],
    [
      'without elements',
      { outputs: [{ name: 'y', datatype: 'FP32', shape: [1, 2] }], raw_output_contents: [] },
      /has 0 elements/,
    ],
  ])('[19.8] fails the batch of an answer %s', async (_, answer, message) => {
    const endpoint = await open();
    endpoint.script.answer = () => answer;
    const serving = await serve(endpoint);
    const error = await failureOf(call(serving, 1));
    expect(error).toBeInstanceOf(InvalidOutputError);
    expect((error as Error).message).toMatch(message);
    expect(endpoint.calls.length).toBe(1);
    endpoint.script.answer = doubled;
    expect(await call(serving, 1)).toBe(2);
  });

  it('[19.8] reads answers as lists, and drops outputs that nobody asked for', async () => {
    const endpoint = await open();
    endpoint.script.answer = () => ({
      outputs: [
        {
          name: 'q',
          datatype: 'INT64',
          shape: [1],
          contents: { int64_contents: ['9007199254740993'] },
        },
        { name: 'y', datatype: 'FP32', shape: [1, 2], contents: { fp32_contents: [7, 8] } },
      ],
    });
    const reply = await (await serve(endpoint)).batchedRun(row(1));
    expect(Object.keys(reply)).toEqual(['y']);
    expect([...(reply.y!.data as Float32Array)]).toEqual([7, 8]);
  });

  it('[19.8] reads BF16 outputs as float32', async () => {
    const endpoint = await open();
    endpoint.script.outputs = [{ name: 'y', datatype: 'BF16', shape: [-1, 2] }];
    endpoint.script.answer = () => ({
      outputs: [{ name: 'y', datatype: 'BF16', shape: [1, 2] }],
      raw_output_contents: [Buffer.from([0x80, 0x3f, 0, 0xc0])],
    });
    const reply = await (await serve(endpoint)).batchedRun(row(1));
    expect([...(reply.y!.data as Float32Array)]).toEqual([1, -2]);
  });

  it('[19.8] gives callers memory of their own', async () => {
    const endpoint = await open();
    // Too large for the pool of Node's buffers, whose memory cannot be transferred.
    const [names, size] = [['y', 'z'], 100_000];
    endpoint.script.outputs = names.map((name) => ({ name, datatype: 'UINT8', shape: [-1, size] }));
    endpoint.script.answer = () => ({
      outputs: names.map((name) => ({ name, datatype: 'UINT8', shape: [1, size] })),
      raw_output_contents: [Buffer.alloc(size, 1), Buffer.alloc(size, 3)],
    });
    const { y, z } = await (await serve(endpoint)).batchedRun(row(1));
    structuredClone(y!.data, { transfer: [(y!.data as Uint8Array).buffer as ArrayBuffer] });
    expect((z!.data as Uint8Array)[size - 1]).toBe(3);
  });

  it('[19.9] sends metadata with each call, of an object or a function', async () => {
    const endpoint = await open();
    let count = 0;
    const serving = await serve(endpoint, {
      servers: { url: endpoint.url, metadata: async () => ({ authorization: `key ${++count}` }) },
    });
    await call(serving, 1);
    await call(serving, 2);
    const sent = endpoint.calls.map(({ metadata }) => metadata.get('authorization')[0] as string);
    expect(new Set(sent).size).toBe(2);
    const other = await serve(endpoint, {
      servers: { url: endpoint.url, metadata: { 'x-key': 'a' } },
    });
    await call(other, 1);
    expect(endpoint.calls.at(-1)!.metadata.get('x-key')).toEqual(['a']);
  });

  it('[19.9] counts metadata that cannot be made as a server that cannot be reached', async () => {
    const endpoint = await open();
    const metadata = withoutToken;
    const error = await failureOf(serve(endpoint, { servers: { url: endpoint.url, metadata } }));
    expect(error).toBeInstanceOf(ServingLoadError);
    expect((error as Error).message).toContain('its metadata function failed with Error');
  });

  it('[19.10] lets the batches that run end when the serving closes, and then its connection', async () => {
    const endpoint = await open();
    let release!: () => void;
    const held = new Promise<void>((resolve) => (release = resolve));
    endpoint.script.answer = async (request) => {
      await held;
      return doubled(request);
    };
    const serving = await serve(endpoint);
    const reply = call(serving, 2);
    await until(() => endpoint.calls.length === 1);
    const closing = serving.close();
    release();
    expect(await reply).toBe(4);
    await closing;
  });

  it('[19.10] cancels the batches that run when the time of shutdown is over', async () => {
    const endpoint = await open();
    endpoint.script.answer = () => never;
    const serving = await serve(endpoint, { shutdown: { timeout: 20 } });
    const reply = failureOf(call(serving, 2));
    await until(() => endpoint.calls.length === 1);
    await serving.close();
    await cancelled(endpoint.calls[0]!);
    expect(await reply).toBeInstanceOf(Error);
  });
});

describeWithCertificate('an endpoint with TLS', ({ ca, cert, key }) => {
  const start = useServings();
  const endpoint = new ScriptedEndpoint();

  afterEach(() => endpoint.kill());

  const open = async (): Promise<string> => {
    const pair = [{ cert_chain: cert, private_key: key }];
    await endpoint.open({}, ServerCredentials.createSsl(ca, pair, true));
    return `grpcs://127.0.0.1:${endpoint.port}`;
  };

  it('[19.9] has the certificates of the definition', async () => {
    const url = await open();
    const tls = { ca: ca.toString(), cert, key };
    const serving = await start<Reply>({ name: 'double', model: modelOn({ url, tls }) });
    expect((await serving.batchedRun(row(4))).y!.data[0]).toBe(8);
  });

  it('[18.24] has TLS also where the scheme of its address is in capitals', async () => {
    const url = (await open()).replace('grpcs', 'GRPCS');
    const tls = { ca: ca.toString(), cert, key };
    const serving = await start<Reply>({ name: 'double', model: modelOn({ url, tls }) });
    expect((await serving.batchedRun(row(4))).y!.data[0]).toBe(8);
  });

  it('[19.9] fails the boot where the certificate of the server is not trusted', async () => {
    const url = await open();
    const serving = start({ name: 'double', model: modelOn({ url, tls: { cert, key } }) });
    await expect(serving).rejects.toThrow(/certificate/);
  });
});

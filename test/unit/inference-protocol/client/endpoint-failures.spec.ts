import { constants, type ServerHttp2Stream } from 'node:http2';
import { inspect } from 'node:util';
import { describe, expect, it } from '@jest/globals';
import {
  BatchFailedError,
  CallCancelledError,
  InvalidOutputError,
  type LocalServing,
  PartitionLostError,
  RequestTooLargeError,
  Tensor,
} from 'nestjs-serving';
import { endpoint as modelOn, type EndpointOptions } from 'nestjs-serving/inference-protocol';
import { until } from '../../../fixtures/async/awaited.js';
import { failureOf } from '../../../fixtures/async/failure-of.js';
import {
  type Answer,
  type Call,
  doubled,
  never,
  type ScriptedEndpoint,
} from '../../../fixtures/endpoints/scripted-endpoint.js';
import { useEndpoints } from '../../../fixtures/endpoints/use-endpoints.js';
import { useServings } from '../../../fixtures/serving/use-servings.js';

type Reply = Record<string, Tensor>;

const ROWS = [1, 2, 3, 4];
const rows = (values: readonly number[]) => ({
  x: new Tensor(
    'float32',
    values.flatMap((value) => [value, 0]),
    [values.length, 2],
  ),
});
const status = (code: number, details = 'scripted'): Answer => ({ code, details });

/** How often each row was in a request that came to the model, in the order of {@link ROWS}. */
function runsOf({ calls }: ScriptedEndpoint): readonly number[] {
  const ran = calls.flatMap(({ request }) => [
    ...new Float32Array(Uint8Array.from(request.raw_input_contents[0]!).buffer),
  ]);
  return ROWS.map((row) => ran.filter((each) => each === row).length);
}

/** Breaks the stream of the call with a code of HTTP/2, as no server does by an answer. */
function broken(call: Call, code: number): Promise<never> {
  streamOf(call).stream.close(code);
  return never;
}

function streamOf(call: Call): { readonly stream: ServerHttp2Stream } {
  return (call as unknown as { call: { stream: ServerHttp2Stream } }).call;
}

describe('A call of an endpoint that fails', () => {
  const open = useEndpoints();
  const start = useServings();

  const serve = (
    endpoint: ScriptedEndpoint,
    recovery: object = {},
    own: Partial<EndpointOptions> = {},
  ): Promise<LocalServing<unknown, Reply>> =>
    start<Reply>({
      name: 'double',
      model: modelOn({ url: endpoint.url, concurrency: 1, ...own }),
      recovery: { restartDelay: 0, maxRestarts: 0, ...recovery },
    });

  it.each<[string, Answer | number, abstract new (...given: never[]) => Error]>([
    ['1 CANCELLED', status(1), PartitionLostError],
    ['2 UNKNOWN', status(2), BatchFailedError],
    ['3 INVALID_ARGUMENT', status(3), BatchFailedError],
    ['4 DEADLINE_EXCEEDED', status(4), PartitionLostError],
    ['5 NOT_FOUND', status(5), PartitionLostError],
    ['6 ALREADY_EXISTS', status(6), BatchFailedError],
    ['7 PERMISSION_DENIED', status(7), PartitionLostError],
    ['8 RESOURCE_EXHAUSTED', status(8), PartitionLostError],
    [
      '8 of a reply, in C++',
      status(8, 'SERVER: Sent message larger than max (5000000 vs. 4194304)'),
      InvalidOutputError,
    ],
    [
      '8 of a reply, in Go',
      status(8, 'grpc: trying to send message larger than max (5 vs. 4)'),
      InvalidOutputError,
    ],
    ['9 FAILED_PRECONDITION', status(9), BatchFailedError],
    ['10 ABORTED', status(10), PartitionLostError],
    ['11 OUT_OF_RANGE', status(11), BatchFailedError],
    ['12 UNIMPLEMENTED', status(12), BatchFailedError],
    ['13 INTERNAL', status(13), BatchFailedError],
    ['14 UNAVAILABLE', status(14), PartitionLostError],
    ['15 DATA_LOSS', status(15), BatchFailedError],
    ['16 UNAUTHENTICATED', status(16), PartitionLostError],
    ['a cancelled stream', constants.NGHTTP2_CANCEL, PartitionLostError],
    ['a stream that broke', constants.NGHTTP2_INTERNAL_ERROR, PartitionLostError],
    ['a slowed connection', constants.NGHTTP2_ENHANCE_YOUR_CALM, PartitionLostError],
  ])(
    '[E3] runs no row twice where the serving is not idempotent and rows may have run: %s',
    async (_, answer, error) => {
      const endpoint = await open();
      endpoint.script.answer = (_request, call) =>
        typeof answer === 'number' ? broken(call, answer) : answer;
      const serving = await serve(endpoint, { idempotent: false, maxRestarts: 9 });

      expect(await failureOf(serving.batchedRun(rows(ROWS)))).toBeInstanceOf(error);
      expect(runsOf(endpoint)).toEqual([1, 1, 1, 1]);
    },
  );

  it.each([
    ['without a message', Buffer.alloc(0)],
    ['that is cut off', Buffer.from([0, 0, 0, 0, 9, 1, 2])],
  ])('[E3] runs no row again after a reply %s', async (_, bytes) => {
    const endpoint = await open();
    endpoint.script.answer = (_request, call) => {
      const { stream } = streamOf(call);
      stream.respond({ 'content-type': 'application/grpc+proto' }, { waitForTrailers: true });
      stream.once('wantTrailers', () => stream.sendTrailers({ 'grpc-status': '0' }));
      stream.end(bytes);
      return never;
    };
    const serving = await serve(endpoint);

    expect(await failureOf(serving.batchedRun(rows(ROWS)))).toBeInstanceOf(InvalidOutputError);
    expect(runsOf(endpoint)).toEqual([1, 1, 1, 1]);
  });

  it('[E3] runs an idempotent batch in halves whose reply is too large for a message', async () => {
    const endpoint = await open();
    endpoint.script.answer = (request) =>
      Number(request.inputs[0]!.shape[0]) > 2
        ? status(8, 'Sent message larger than max (5000000 vs. 4194304)')
        : doubled(request);
    const serving = await serve(endpoint);

    const { y } = await serving.batchedRun(rows(ROWS));
    expect([...(y!.data as Float32Array)]).toEqual([2, 0, 4, 0, 6, 0, 8, 0]);
    expect(runsOf(endpoint)).toEqual([2, 2, 2, 2]);
  });

  it('[E3] runs a batch again that proves to have run nothing, idempotent or not: a request too large, a refused stream', async () => {
    const endpoint = await open();
    let calls = 0;
    endpoint.script.answer = (request, call) => {
      calls++;
      return calls === 1
        ? status(8, 'SERVER: Received message larger than max (5000000 vs. 4194304)')
        : calls === 2
          ? broken(call, constants.NGHTTP2_REFUSED_STREAM)
          : doubled(request);
    };
    const serving = await serve(endpoint, { idempotent: false, maxRestarts: 9 });

    const { y } = await serving.batchedRun(rows(ROWS));
    expect([...(y!.data as Float32Array)]).toEqual([2, 0, 4, 0, 6, 0, 8, 0]);

    endpoint.script.answer = () => status(8, 'received message larger than max');
    const error = await failureOf(serving.batchedRun(rows([1])));
    expect(error).toBeInstanceOf(RequestTooLargeError);
  });

  it('[E3] does not run the first step of a fixed batch again when a later one was not sent', async () => {
    const endpoint = await open();
    endpoint.script.inputs = [{ name: 'x', datatype: 'FP32', shape: [2, 2] }];
    endpoint.script.outputs = [{ name: 'y', datatype: 'FP32', shape: [2, 2] }];
    endpoint.script.answer = (request, call) =>
      endpoint.calls.length === 1
        ? doubled(request)
        : broken(call, constants.NGHTTP2_REFUSED_STREAM);
    const serving = await start<Reply>({
      name: 'double',
      model: modelOn(endpoint.url, {
        inputs: { x: { batchAxis: 0 } },
        outputs: { y: { batchAxis: 0 } },
      }),
      batchSize: 4,
      recovery: { restartDelay: 0, idempotent: false },
    });

    await expect(serving.batchedRun(rows(ROWS))).rejects.toThrow(PartitionLostError);
    expect(runsOf(endpoint)).toEqual([1, 1, 1, 1]);
  });

  it.each([
    [4, 'DEADLINE_EXCEEDED'],
    [8, 'RESOURCE_EXHAUSTED'],
    [10, 'ABORTED'],
    [14, 'UNAVAILABLE'],
  ])(
    '[E4] keeps a server that answers %i %s, and states that it is ready: no circuit, no restart',
    async (code) => {
      const endpoint = await open();
      let busy = 12;
      endpoint.script.answer = (request) =>
        --busy >= 0 ? status(code, 'Exceeds maximum queue size') : doubled(request);
      const serving = await serve(endpoint, { retries: 1 });

      for (let call = 0; call < 6; call++) {
        await expect(serving.batchedRun(rows([1]))).rejects.toThrow(PartitionLostError);
      }
      const { y } = await serving.batchedRun(rows([1]));
      expect(y!.data[0]).toBe(2);
      expect(serving.partitions()).toMatchObject([{ state: 'up', restarts: 0 }]);
    },
  );

  it('[E4] loses a server that answers that it is busy, and does not state that it is ready', async () => {
    const endpoint = await open();
    endpoint.script.answer = () => status(14, 'upstream connect error');
    const serving = await serve(endpoint, { retries: 0 });
    endpoint.script.ready = false;

    await expect(serving.batchedRun(rows([1]))).rejects.toThrow(PartitionLostError);
    await until(() => serving.partitions()[0]!.state === 'lost');
    expect(serving.partitions()[0]!.reason).toContain('states that it is not ready');
  });

  it('[E5] frees the place of a batch whose metadata never comes, once its callers have left', async () => {
    const endpoint = await open();
    let hangs = false;
    let asked = 0;
    const metadata = () => {
      asked++;
      return hangs ? never : {};
    };
    const serving = await serve(endpoint, {}, { metadata });
    hangs = true;
    const before = asked;
    const leaving = new AbortController();
    const left = failureOf(serving.batchedRun(rows([1]), { signal: leaving.signal }));
    await until(() => asked > before);
    leaving.abort(new CallCancelledError('left'));
    await left;

    hangs = false;
    const { y } = await serving.batchedRun(rows([2]));
    expect(y!.data[0]).toBe(4);
    expect(serving.partitions()).toMatchObject([{ state: 'up', restarts: 0 }]);
  });

  it.each<[string, () => Record<string, string>]>([
    ['a value with a line break', () => ({ authorization: 'Bearer SECRET\n' })],
    ['a value with a letter that is no ASCII', () => ({ authorization: 'SECRET-ü' })],
    ['a value that is none', () => ({ authorization: ['SECRET'] as unknown as string })],
    [
      'a function that throws',
      () => {
        throw new TypeError('"Bearer SECRET" is an invalid header value');
      },
    ],
  ])('[X2] never quotes metadata in an error: %s', async (_, fault) => {
    const endpoint = await open();
    let isFaulty = false;
    const metadata = () => (isFaulty ? fault() : {});
    const serving = await serve(endpoint, {}, { metadata });
    isFaulty = true;

    const error = await failureOf(serving.batchedRun(rows([1])));
    const seen = inspect([error, serving.partitions(), serving.health()], { depth: 20 });
    expect(seen).not.toContain('SECRET');
    expect(seen).toContain('its metadata');
  });
});

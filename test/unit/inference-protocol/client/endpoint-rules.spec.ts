import { describe, expect, it } from '@jest/globals';
import { createServing, InvalidServingError } from 'nestjs-serving';
import { endpoint } from 'nestjs-serving/inference-protocol';
import { features } from '../../../../lib/doors/servings.js';

const url = 'grpc://triton:8001';
/** Values that violate the types are allowed here. */
const create = ({
  servers = url,
  model,
  ...options
}: {
  readonly servers?: unknown;
  readonly model?: unknown;
}) => {
  const server = endpoint(servers as string, model as string | undefined);
  return createServing({ name: 'm', model: server, ...options });
};

describe('The definition of a serving with an endpoint', () => {
  it.each<[object, string]>([
    [{ servers: [] }, 'allowed is an address, an object of url'],
    [{ servers: 'triton:8001' }, '"triton:8001"; allowed is grpc://host:port, or with TLS grpcs'],
    [{ servers: 'grpc://triton' }, 'allowed is grpc://host:port'],
    [{ servers: 'http://triton:8000' }, 'allowed is grpc://host:port'],
    [{ servers: 'grpc://triton:0' }, 'allowed is grpc://host:port'],
    [{ servers: 'grpc://triton:65536' }, 'allowed is grpc://host:port'],
    [{ servers: 'grpc://triton:8001/models' }, 'allowed is grpc://host:port'],
    [{ servers: 7 }, 'option "endpoint" is 7; allowed is an address'],
    [{ servers: {} }, 'option "endpoint.url" is undefined'],
    [{ servers: { url, concurrency: 0 } }, 'option "endpoint.concurrency" is 0'],
    [{ servers: { url, retries: 1 } }, 'unknown option "endpoint.retries"'],
    [{ servers: { url, metadata: { key: 1 } } }, 'option "endpoint.metadata"'],
    [{ servers: { url, tls: { ca: 'pem' } } }, `endpoint.tls has no effect on ${url}`],
    [
      { servers: { url: 'grpcs://a:1', tls: { cert: 'pem' } } },
      'endpoint.tls of grpcs://a:1 has one of cert and key',
    ],
    [{ servers: { url: 'grpcs://a:1', tls: { ca: 5 } } }, 'option "endpoint.tls.ca" is 5'],
    [{ servers: [url, { url }] }, `the endpoint ${url} is there twice; raise its concurrency`],
    [{ model: '' }, 'option "model.name"'],
    [{ model: { file: 'x.onnx' } }, 'unknown option "model.file"'],
    [{ model: { state: { a: 'b' } } }, 'unknown option "model.state"'],
    [{ model: { inputs: { x: 0 } } }, 'option "model.inputs"'],
    [{ rollout: { version: 1 } }, 'option "rollout.version" is 1'],
    [{ useFile: '/x.js' }, 'unknown option "useFile"'],
    [{ partitions: 2 }, 'option "partitions" is 2; allowed is nothing here: an external'],
  ])('[19.11] is refused with %j', (options, message) => {
    expect(() => create(options)).toThrow(InvalidServingError);
    expect(() => create(options)).toThrow(message);
  });

  it.each<[object, string]>([
    [{ metdata: { authorization: 'Bearer known-word' } }, 'did you mean "endpoint.metadata"?'],
    [{ metadata: 'Bearer known-word' }, 'option "endpoint.metadata" cannot be used; allowed is'],
    [{ tls: { kye: 'known-word' } }, 'did you mean "endpoint.tls.key"?'],
    [{ tls: { key: [{ pem: 'known-word' }] } }, 'option "endpoint.tls.key" cannot be used'],
    [{ tls: 'known-word' }, 'option "endpoint.tls" cannot be used; allowed is an object of ca'],
  ])('[23.21] is refused with %j, which the error does not show', (options, message) => {
    const define = () => create({ servers: { url: 'grpcs://a:1', ...options } });
    expect(define).toThrow(message);
    expect(define).not.toThrow('known-word');
  });

  it.each<[object]>([
    [{ servers: 'grpc://[::1]:8001' }],
    [{ servers: 'grpcs://triton.models.svc:443' }],
    [
      {
        servers: { url: 'grpcs://a:1', tls: { ca: 'pem', cert: 'pem', key: Buffer.from('pem') } },
      },
    ],
    [{ servers: [url, { url: 'grpc://b:8001', concurrency: 4, metadata: () => ({}) }] }],
    [{ model: 'resnet50', rollout: { version: '2' } }],
    [{ model: { name: 'resnet50', inputs: { x: { batchAxis: 0 } }, fetches: ['y'] } }],
    [{ recovery: { restartDelay: 1, maxRestarts: 2, runTimeout: 5 }, batchKeys: ['a'] }],
  ])('[19.11] is accepted with %j', (options) => {
    expect(() => create(options)).not.toThrow();
  });

  it('[19.3] has a partition per batch that an endpoint gets at once, by turns', () => {
    const { partitions, recovery, runner } = features.resolve({
      name: 'm',
      model: endpoint(['grpc://a:1', { url: 'grpc://b:1', concurrency: 3 }]),
    });
    expect(partitions.map((each) => each['url'])).toEqual([
      'grpc://a:1',
      'grpc://b:1',
      'grpc://a:1',
      'grpc://b:1',
      'grpc://b:1',
    ]);
    expect([runner, recovery.idempotent]).toEqual(['external model', true]);
  });
});

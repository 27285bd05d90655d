import { describe, expect, it } from '@jest/globals';
import type { InferenceProtocolOptions } from 'nestjs-serving/inference-protocol';
import { resolveProtocol } from '../../../lib/extensions/inference-protocol/server/options.js';
import { modelsOf } from '../../fixtures/serving/inference-core.js';

describe('Options of the protocol', () => {
  it.each<[unknown, string]>([
    [{ serving: ['a'] }, 'did you mean "servings"?'],
    [{ servings: 'a' }, 'option "servings" is "a"; allowed is a list'],
    [{ servings: [1] }, 'option "servings" has 1; give the name of a serving'],
    [{ servings: [{}] }, 'serving undefined: option "serving" is undefined; allowed is a name'],
    [{ servings: [{ serving: 'a', model: 'x/y' }] }, 'serving "a": option "model" is "x/y"'],
    [{ servings: ['a/b'] }, 'the name of serving "a/b" has a slash, which clients do not encode'],
    [
      { servings: ['a', { serving: 'b', model: 'a' }] },
      'two servings are offered as the model "a"',
    ],
    [
      { servings: [{ serving: 'a', inputs: {} }] },
      'option "inputs" is {}; allowed is an object of',
    ],
    [
      { servings: [{ serving: 'a', inputs: { text: 'STRING' } }] },
      'serving "a", inputs: "text" is "STRING"; give a datatype of the protocol',
    ],
    [{ servings: [{ serving: 'a', outputs: { x: 'FP32[' } }] }, 'outputs: "x" is "FP32["'],
    [{ guards: [1] }, 'option "guards" is [ 1 ]; allowed is a list of guards'],
    [{ bodyLimit: 0 }, 'option "bodyLimit" is 0; allowed is a whole number from 1 to 2147483647'],
    [{ repository: {} }, 'option "repository" is {}; allowed is an object of guards'],
    [{ repository: { guards: [] } }, 'a list of at least one'],
    [{ grpc: {} }, 'option "grpc.port" is undefined; allowed is a whole number from 0 to 65535'],
    [{ grpc: { port: 1, tls: { cert: 'pem' } } }, 'option "grpc.tls.key" is undefined'],
    [{ grpc: { port: 1, url: 'a' } }, 'unknown option "grpc.url"'],
  ])('[18.15] %j is refused', (options, message) => {
    expect(() => resolveProtocol(options as InferenceProtocolOptions)).toThrow(
      expect.objectContaining({
        name: 'InvalidServingError',
        message: expect.stringContaining(message),
      }),
    );
  });

  it('[18.15] A serving that does not exist is refused with the names of those that do', () => {
    expect(() => modelsOf([], { servings: ['nix'] })).toThrow(
      'InferenceProtocolModule: there is no serving "nix"; registered are: none',
    );
  });
});

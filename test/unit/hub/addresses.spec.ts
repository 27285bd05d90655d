import { describe, expect, it } from '@jest/globals';
import { InvalidServingError } from 'nestjs-serving';
import { parseAddress } from '../../../lib/extensions/hub/remote-model.js';

describe('The address of a model', () => {
  const sha256 = 'A0'.repeat(32);
  const pin = sha256.toLowerCase();

  it.each<[string | URL, string | false | undefined, object]>([
    [
      'hf:org/repo/model.onnx',
      undefined,
      { repo: 'org/repo', revision: 'main', path: 'model.onnx' },
    ],
    [
      'hf:org/my.repo/onnx/model_q4.onnx@feature/x',
      sha256,
      { repo: 'org/my.repo', revision: 'feature/x', path: 'onnx/model_q4.onnx', sha256: pin },
    ],
    [new URL('hf:org/repo/a/b@v1.0'), undefined, { revision: 'v1.0', path: 'a/b' }],
    [
      'https://models.example/a/my%20model.onnx?signature=secret',
      sha256,
      {
        name: 'https://models.example/a/my%20model.onnx',
        url: 'https://models.example/a/my%20model.onnx?signature=secret',
        file: 'my model.onnx',
        sha256: pin,
      },
    ],
    [new URL('https://models.example/..%2fx'), false, { file: 'model.onnx', sha256: undefined }],
    ['http://localhost:8080/model.onnx', sha256, { sha256: pin }],
  ])('[1.10] A model is given by its address: %s', (file, hash, parsed) => {
    expect(parseAddress('Serving "a"', String(file), hash)).toMatchObject(parsed);
  });

  it.each<[string | URL, string | false | undefined, string]>([
    ['hf:model.onnx', undefined, '"hf:model.onnx" is no file of the Hub; give hf:org/repo/path'],
    ['hf:org/repo', undefined, 'is no file of the Hub'],
    ['hf:org/repo/../../x', undefined, 'is no file of the Hub'],
    ['hf:org/../model.onnx', undefined, 'is no file of the Hub'],
    ['hf:org/repo/a\\..\\b', undefined, 'is no file of the Hub'],
    ['hf:org/repo/model.onnx@', undefined, 'is no file of the Hub'],
    ['hf:org/repo/model.onnx@../../x', undefined, 'is no file of the Hub'],
    ['hf:org/repo/model.onnx', false, 'sha256: false has no effect on hf:org/repo/model.onnx'],
    ['https://', sha256, '"https://" is no valid address'],
    ['https://models.example/m.onnx', undefined, 'https://models.example/m.onnx needs the SHA-256'],
    ['http://models.example/m.onnx', false, 'is not encrypted'],
    ['https://me:secret@models.example/m.onnx', sha256, 'has a user or a password'],
  ])('[1.10] [1.9] A model is refused at boot: %s with sha256 %s', (file, hash, message) => {
    const resolving = () => parseAddress('Serving "a"', String(file), hash);
    expect(resolving).toThrow(InvalidServingError);
    expect(resolving).toThrow('Serving "a": ');
    expect(resolving).toThrow(message);
  });

  it('[1.10] A password in an address is in no error', () => {
    expect(() =>
      parseAddress('Serving "a"', 'https://me:secret@models.example/?k=secret', undefined),
    ).toThrow(expect.objectContaining({ message: expect.not.stringContaining('secret') }));
  });
});

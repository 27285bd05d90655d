import { describe, expect, it } from '@jest/globals';
import {
  createServing,
  getServingSchemas,
  InvalidServingError,
  type RowTemplate,
  type Serving,
  type ServingDefinition,
} from 'nestjs-serving';
import { Tensor } from 'onnxruntime-common';
import { storageClasses, zerosOf } from '../../../lib/doors/values.js';
import { writeJson } from '../../../lib/extensions/distribution/json/json-handlers.js';
import { defaultWireLimits } from '../../../lib/extensions/distribution/wire/limits.js';

interface Written {
  readonly $tensor: { readonly datatype: string; readonly data: readonly unknown[] };
}

const withTemplate = (template: RowTemplate): Serving => {
  const definition: ServingDefinition = {
    name: 'declared',
    model: { useFactory: () => (rows) => rows, signature: { template } },
  };
  return createServing(definition);
};

describe('getServingSchemas', () => {
  it('[D9] A template of one tensor gives the schema of a tensor, and no output', () => {
    const { input, output } = getServingSchemas(
      withTemplate({ type: 'int64', shape: [null, 'length', 3] }),
    );

    expect(output).toBeUndefined();
    expect(input).toEqual({
      type: 'object',
      required: ['$tensor'],
      properties: {
        $tensor: {
          type: 'object',
          description: 'int64[?, length, 3]',
          required: ['shape', 'datatype', 'data'],
          properties: {
            shape: {
              type: 'array',
              items: { type: 'integer', minimum: 0 },
              minItems: 3,
              maxItems: 3,
            },
            datatype: { type: 'string', enum: ['INT64'] },
            data: { type: 'array', description: expect.any(String), items: { type: 'integer' } },
          },
        },
      },
    });
  });

  it('[D9] A template of several tensors gives the schema of an object with all of them', () => {
    const { input } = getServingSchemas(
      withTemplate({
        ids: { type: 'int32', shape: [null] },
        mask: { type: 'bool', shape: [null] },
      }),
    );

    expect(input).toMatchObject({
      type: 'object',
      required: ['ids', 'mask'],
      properties: { ids: { type: 'object' }, mask: { type: 'object' } },
    });
  });

  it.each<Tensor.Type>([...(storageClasses.keys() as Iterable<Tensor.Type>), 'string'])(
    '[D9] The schema of %s names its datatype and elements as JSON has them',
    (type) => {
      const tensor = new Tensor(type, zerosOf(type, [1]), [1]);
      const { $tensor: json } = writeJson(tensor, 'list', defaultWireLimits) as unknown as Written;
      const { input } = getServingSchemas(withTemplate({ type, shape: [null] }));

      const { datatype, data } = input.properties!['$tensor']!.properties!;
      expect(datatype!.enum).toEqual([json.datatype]);
      const [element] = json.data;
      expect(typeof element).toBe(data!.items!.type === 'integer' ? 'number' : data!.items!.type);
    },
  );

  it.each<[string, Serving, string]>([
    [
      'a model that has not started',
      createServing({ name: 'digits', model: 'sample/01-digits/model/digits.onnx' }),
      'Serving "digits" has no signature that a schema could be made of: a model has one once it',
    ],
    [
      'a function without a template',
      createServing({ name: 'plain', model: { useFactory: () => (rows: string[]) => rows } }),
      'Serving "plain" has no signature',
    ],
    [
      'a template of nested containers',
      withTemplate({ 'state.0': { type: 'float32', shape: [null] } }),
      'Serving "declared": the tensor "state.0" of its template lies in a nested container',
    ],
  ])('[D9] There is no schema for %s', (_, serving, message) => {
    expect(() => getServingSchemas(serving)).toThrow(InvalidServingError);
    expect(() => getServingSchemas(serving)).toThrow(message);
  });
});

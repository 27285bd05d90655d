import type { Tensor } from 'onnxruntime-common';
import { describeTensors } from '../core/definition/serving-signature.js';
import type { TensorSignature } from '../core/partitions/model/model-signature.js';
import { InvalidServingError } from '../core/errors.js';
import { datatypeOf } from './json-tensor.js';
import type { Serving } from '../core/serving/serving.js';

/** The subset of JSON Schema that OpenAPI shares. */
export interface JsonSchema {
  type: 'object' | 'array' | 'string' | 'number' | 'integer' | 'boolean';
  description?: string;
  properties?: Record<string, JsonSchema>;
  required?: string[];
  items?: JsonSchema;
  enum?: string[];
  minItems?: number;
  maxItems?: number;
  minimum?: number;
}

/** JSON bodies of a serving that takes and returns tensors. */
export interface ServingSchemas {
  /** A call's body: a tensor, or an object of tensors by name. */
  readonly input: JsonSchema;
  /** Undefined if only inputs are declared. */
  readonly output: JsonSchema | undefined;
}

/**
 * JSON schemas of a serving's inputs and outputs, for an OpenAPI document: tensors by name, as
 * `{ "$tensor": { "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3] } }`.
 *
 * @throws InvalidServingError for a serving that has not started or declares no tensors, and for a
 * template of nested containers
 */
export function getServingSchemas({ name, signature }: Serving): ServingSchemas {
  if (!signature) {
    throw new InvalidServingError(
      `Serving "${name}" has no signature that a schema could be made of: a model has one once it ` +
        'has started, and others need signature.template',
    );
  }
  const { inputs, outputs } = signature;
  const nested = outputs ? undefined : inputs.find((tensor) => tensor.name.includes('.'));
  if (nested) {
    throw new InvalidServingError(
      `Serving "${name}": the tensor "${nested.name}" of its template lies in a nested container, ` +
        'which getServingSchemas does not describe; write its schema by hand',
    );
  }
  return { input: schemaOf(inputs), output: outputs && schemaOf(outputs) };
}

function schemaOf(tensors: readonly TensorSignature[]): JsonSchema {
  const [first] = tensors;
  return first?.name === ''
    ? tensorSchema(first)
    : objectOf(Object.fromEntries(tensors.map((tensor) => [tensor.name, tensorSchema(tensor)])));
}

function tensorSchema(tensor: TensorSignature): JsonSchema {
  const { type, shape } = tensor;
  const parts = objectOf({
    shape: {
      type: 'array',
      items: { type: 'integer', minimum: 0 },
      minItems: shape.length,
      maxItems: shape.length,
    },
    datatype: { type: 'string', enum: [datatypeOf(type)] },
    data: {
      type: 'array',
      description: 'The elements, row by row; those of numbers also as little-endian base64',
      items: { type: elementOf(type) },
    },
  });
  return objectOf({ $tensor: { ...parts, description: describeTensors([tensor]) } });
}

function objectOf(properties: Record<string, JsonSchema>): JsonSchema {
  return { type: 'object', required: Object.keys(properties), properties };
}

function elementOf(type: Tensor.Type): JsonSchema['type'] {
  if (type === 'bool') {
    return 'boolean';
  }
  return type === 'string' ? 'string' : type.startsWith('float') ? 'number' : 'integer';
}

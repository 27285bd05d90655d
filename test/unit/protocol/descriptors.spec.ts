import { readFile } from 'node:fs/promises';
import { describe, expect, it } from '@jest/globals';
import {
  type AnyDefinition,
  load,
  loadFileDescriptorSetFromBuffer,
  type MethodDefinition,
} from '@grpc/proto-loader';

interface Descriptor {
  readonly name: string;
  readonly field?: readonly {
    readonly name: string;
    readonly number: number;
    readonly label: string;
    readonly type: string;
    readonly typeName: string;
  }[];
  readonly oneofDecl?: readonly { readonly name: string }[];
  readonly nestedType?: readonly Descriptor[];
  readonly enumType?: readonly Descriptor[];
  readonly value?: readonly { readonly name: string; readonly number: number }[];
}

/** Without its path, and the end that proto-loader leaves out of the types of maps. */
const shortName = (name: string) =>
  name
    .split('.')
    .at(-1)!
    .replace(/Entry$/, '');

function factsOf(each: Descriptor): object {
  return {
    name: shortName(each.name),
    fields: each.field?.map(({ name, number, label, type, typeName }) => [
      name,
      number,
      label,
      type,
      shortName(typeName),
    ]),
    oneofs: each.oneofDecl?.map(({ name }) => name),
    types: each.nestedType?.map((type) => [shortName(type.name), factsOf(type)]).toSorted(),
    enums: each.enumType?.map(factsOf),
    values: each.value?.map(({ name, number }) => [name, number]),
  };
}

function methodFacts(method: MethodDefinition<object, object>): object {
  const { path, requestStream, responseStream, requestType, responseType } = method;
  const types = [requestType, responseType].map(({ type }) => factsOf(type as Descriptor));
  return { path, requestStream, responseStream, types };
}

function definitionFacts(definition: AnyDefinition): object {
  return 'format' in definition
    ? factsOf(definition.type as Descriptor)
    : Object.values(definition as Record<string, MethodDefinition<object, object>>).map(
        methodFacts,
      );
}

describe('Descriptors for reflection', () => {
  it.each(['wire/inference', 'server/grpc/health'])(
    '[18.22] The descriptor of %s says the same as its proto file; write it again by protoc after a change',
    async (name) => {
      const file = `lib/extensions/inference-protocol/${name}`;
      const read = Object.entries(await load(`${file}.proto`, { keepCase: true }));
      const described = loadFileDescriptorSetFromBuffer(await readFile(`${file}.binpb`), {
        keepCase: true,
      });

      expect(Object.keys(described).toSorted()).toEqual(read.map(([key]) => key).toSorted());
      for (const [key, definition] of read) {
        expect(definitionFacts(described[key]!)).toEqual(definitionFacts(definition));
      }
    },
  );
});

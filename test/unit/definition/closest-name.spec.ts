import { expect, it } from '@jest/globals';
import { createServing } from 'nestjs-serving';

it.each([
  ['shutdwn', 'shutdown'],
  ['bachSize', 'batchSize'],
  ['BatchSize', 'batchSize'],
  ['batchsizes', 'batchSize'],
  ['timeuot', 'timeout'],
  ['maxQueue', undefined],
  ['x', undefined],
  ['', undefined],
])('[1.9] The option that was meant by "%s" is %s', (name, meant) => {
  const definition = { name: 'net', model: { useFactory: () => () => [] }, [name]: 1 };

  expect(() => createServing(definition)).toThrow(
    `unknown option "${name}" (1); ` +
      (meant === undefined ? 'known are' : `did you mean "${meant}"? known are`),
  );
});

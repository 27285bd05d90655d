import { describe, expect, it } from '@jest/globals';
import { createServing, InvalidServingError } from 'nestjs-serving';

const useFactory = () => (rows: unknown[]) => rows;

const define = (model: object) => () => createServing({ name: 's', model: model as never });

describe('A definition with a fault', () => {
  it('[FR15] A misspelt runner is named, with the option that was meant', () => {
    expect(define({ useFactroy: useFactory })).toThrow(InvalidServingError);
    expect(define({ useFactroy: useFactory })).toThrow(
      'Serving "s" has nothing to run its batches and the unknown option "model.useFactroy"; did ' +
        'you mean "model.useFactory"?; as its model give',
    );
    expect(define({ isolation: 'thread' })).toThrow(
      'Serving "s" has nothing to run its batches; as its model give',
    );
  });

  it.each([0, { default: 0 }, { most: 0 }])(
    '[FR15] A timeout of %j, in which no call can be answered, is refused at the start',
    (timeout) => {
      expect(() => createServing({ name: 's', timeout, model: { useFactory } })).toThrow(
        InvalidServingError,
      );
    },
  );
});

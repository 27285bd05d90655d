import { expect, it } from '@jest/globals';
import {
  errorHeader,
  notSentError,
} from '../../../../lib/extensions/distribution/calls/attempt-error.js';
import { NodeGoneError } from '../../../../lib/extensions/distribution/transport.js';
import { NodeLostError, RequestTooLargeError } from 'nestjs-serving';

it('[11] A call that could not be sent has not run and may go to another node, unless it is too large for any', () => {
  const full = new Error('The NATS server does not read');
  const unsent = notSentError('m', 'a-1', full);

  expect(unsent).toMatchObject({ mayHaveRun: 'no', isUnreachable: true, error: { cause: full } });
  expect(unsent.error).toBeInstanceOf(NodeLostError);
  expect(unsent.message).toBe(
    'The call to serving "m" could not be sent to node a-1: The NATS server does not read',
  );
  expect(notSentError('m', 'a-1', new NodeGoneError('a-1'))).toMatchObject({
    mayHaveRun: 'no',
    isUnreachable: true,
  });
  expect(notSentError('m', 'a-1', new RequestTooLargeError('large'))).toMatchObject({
    mayHaveRun: 'yes',
    isUnreachable: false,
  });
});

it('[H11] A call that failed with a value that cannot be read has an error that can be sent', () => {
  const { proxy, revoke } = Proxy.revocable({}, {});
  revoke();

  expect(errorHeader(proxy)).toMatchObject({
    error: { message: 'an error that cannot be read' },
    mayHaveRun: 'yes',
  });
});

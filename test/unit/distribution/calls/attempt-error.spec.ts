import { expect, it } from '@jest/globals';
import { faultHeader, unsentFault } from '../../../../lib/distribution/calls/attempt-error.js';
import { NodeGoneError } from '../../../../lib/distribution/transport.js';
import { NodeLostError, RequestTooLargeError } from '../../../../lib/errors.js';

it('[11] a call that could not be sent has not run, and another node may be asked, unless it is too large for any', () => {
  const full = new Error('The NATS server does not read');
  const unsent = unsentFault('m', 'a-1', full);

  expect(unsent).toMatchObject({ executed: 'no', isGone: true, error: { cause: full } });
  expect(unsent.error).toBeInstanceOf(NodeLostError);
  expect(unsent.message).toBe('The call to serving "m" could not be sent to node a-1: The NATS server does not read');
  expect(unsentFault('m', 'a-1', new NodeGoneError('a-1'))).toMatchObject({ executed: 'no', isGone: true });
  expect(unsentFault('m', 'a-1', new RequestTooLargeError('large'))).toMatchObject({ executed: 'yes', isGone: false });
});

it('[H11] a call that failed with a value that cannot be read has a fault that can be sent', () => {
  const { proxy, revoke } = Proxy.revocable({}, {});
  revoke();

  expect(faultHeader(proxy)).toMatchObject({
    error: { message: 'an error that cannot be read' },
    executed: 'yes',
  });
});

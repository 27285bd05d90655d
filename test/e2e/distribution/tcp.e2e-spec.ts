import { describe } from '@jest/globals';
import { TcpTransport } from '../../../lib/distribution/transports/tcp.transport.js';
import { describeTransport, useNodes } from '../../fixtures/every-transport.js';

/** Each dials all that were there before. */
const join = useNodes<TcpTransport>(
  (others) => new TcpTransport({ peers: others.flatMap(({ port }) => (port ? [{ host: '127.0.0.1', port }] : [])) }),
);

describe('TCP', () => {
  describeTransport({ name: 'TCP', connections: true, join });
});

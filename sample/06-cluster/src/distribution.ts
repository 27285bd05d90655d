import { Transport } from '@nestjs/microservices';
import type { DistributionOptions } from 'nestjs-serving/distribution';

/**
 * How the nodes of this sample find each other: over NATS if `NATS_URL` has its address, else
 * over TCP, by the ports in `PEERS`.
 */
export function distribution(): DistributionOptions {
  const { NATS_URL, LISTEN, PEERS = '', NODE_NAME } = process.env;
  const common = { namespace: 'digits', ...(NODE_NAME !== undefined && { nodeId: NODE_NAME }) };
  if (NATS_URL) {
    return { ...common, transport: Transport.NATS, options: { servers: NATS_URL } };
  }
  const peers = PEERS.split(',').map((port) => `127.0.0.1:${port}`);
  return {
    ...common,
    transport: Transport.TCP,
    options: LISTEN ? { port: Number(LISTEN) } : {},
    peers,
  };
}

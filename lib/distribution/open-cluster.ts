import { Transport } from '@nestjs/microservices';
import { InvalidServingError } from '../errors.js';
import type { Serving } from '../serving/serving.js';
import { show } from '../show.js';
import { Cluster } from './cluster.js';
import { Offers } from './offers.js';
import { refuseMisplaced } from './misplaced.js';
import { type DistributionOptions, resolveDistribution } from './options.js';
import type { ServingTransport } from './transport.js';

/** This node, not started yet; Nest does that with its hooks. */
export async function openCluster(options: DistributionOptions, servings: () => ReadonlyMap<string, Serving>): Promise<Cluster> {
  const resolved = resolveDistribution(options);
  return new Cluster(resolved, await transportOf(options), new Offers(servings));
}

/** Each is loaded only where it is used. */
async function transportOf(given: DistributionOptions): Promise<ServingTransport> {
  const { transport, secret } = given;
  switch (given.transport) {
    case Transport.TCP: {
      refuseMisplaced({ transport: 'Transport.TCP', options: ['host', 'port'], isDialled: true }, given);
      const { TcpTransport } = await import('./transports/tcp.transport.js');
      const { options, peers, insecure } = given;
      return new TcpTransport({ options, peers, secret, insecure });
    }
    case Transport.GRPC: {
      refuseMisplaced({ transport: 'Transport.GRPC', options: ['url'], isDialled: true }, given);
      const { GrpcTransport } = await import('./transports/grpc.transport.js');
      const { options, peers, insecure } = given;
      return new GrpcTransport({ options, peers, secret, insecure });
    }
    case Transport.NATS: {
      refuseMisplaced({ transport: 'Transport.NATS', options: ['servers', 'port'], isDialled: false }, given);
      const { NatsTransport } = await import('./transports/nats.transport.js');
      return new NatsTransport({ options: given.options });
    }
    case Transport.REDIS: {
      refuseMisplaced({ transport: 'Transport.REDIS', options: ['host', 'port'], isDialled: false }, given);
      const { RedisTransport } = await import('./transports/redis.transport.js');
      return new RedisTransport({ options: given.options });
    }
    default:
      if (isTransport(transport)) {
        return transport;
      }
      throw new InvalidServingError(
        `ServingModule, option "distribution": transport ${show(transport)} does not carry servings; ` +
          'allowed are Transport.TCP, Transport.GRPC, Transport.NATS, Transport.REDIS, and objects that are a ServingTransport',
      );
  }
}

function isTransport(value: unknown): value is ServingTransport {
  return typeof value === 'object' && value !== null && 'broadcast' in value;
}

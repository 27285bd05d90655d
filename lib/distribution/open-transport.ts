import { Transport } from '@nestjs/microservices';
import { InvalidServingError } from '../errors.js';
import { formatValue } from '../format.js';
import type { DistributionOptions } from './options.js';
import type { ServingTransport } from './transport.js';

/** The transport of the options, not started. Each is loaded only where it is used. */
export async function openTransport(given: DistributionOptions): Promise<ServingTransport> {
  const { transport, secret } = given;
  switch (given.transport) {
    case Transport.TCP: {
      checkTransportOptions(
        { transport: 'Transport.TCP', options: ['host', 'port'], isDialled: true },
        given,
      );
      const { TcpTransport } = await import('./transports/tcp/tcp.transport.js');
      const { options, peers, insecure } = given;
      return new TcpTransport({ options, peers, secret, insecure });
    }
    case Transport.GRPC: {
      checkTransportOptions(
        { transport: 'Transport.GRPC', options: ['url'], isDialled: true },
        given,
      );
      const { GrpcTransport } = await import('./transports/grpc/grpc.transport.js');
      const { options, peers, insecure } = given;
      return new GrpcTransport({ options, peers, secret, insecure });
    }
    case Transport.NATS: {
      checkTransportOptions(
        { transport: 'Transport.NATS', options: ['servers', 'port'], isDialled: false },
        given,
      );
      const { NatsTransport } = await import('./transports/nats/nats.transport.js');
      return new NatsTransport({ options: given.options });
    }
    case Transport.REDIS: {
      checkTransportOptions(
        { transport: 'Transport.REDIS', options: ['host', 'port'], isDialled: false },
        given,
      );
      const { RedisTransport } = await import('./transports/redis/redis.transport.js');
      return new RedisTransport({ options: given.options });
    }
    default:
      if (isTransport(transport)) {
        return transport;
      }
      throw new InvalidServingError(
        `ServingClusterModule: transport ${formatValue(transport)} does not carry servings; ` +
          'allowed are Transport.TCP, Transport.GRPC, Transport.NATS, Transport.REDIS, and ' +
          'objects that are a ServingTransport',
      );
  }
}

function isTransport(value: unknown): value is ServingTransport {
  return typeof value === 'object' && value !== null && 'broadcast' in value;
}

/**
 * One of Nest's transports, as its users name it, and the options that tell it where to listen and
 * whom to look for.
 */
export interface TransportOptions {
  readonly transport: string;
  readonly options: readonly string[];
  /** Whether its nodes dial each other, instead of meeting at a server. */
  readonly isDialled: boolean;
}

const ALL = ['host', 'port', 'url', 'servers'];

/**
 * What is meant for another transport would be passed on and mean nothing: the node would listen,
 * or look for others, at a place that nobody has named.
 *
 * @throws InvalidServingError naming what is misplaced
 */
export function checkTransportOptions(
  { transport, options, isDialled }: TransportOptions,
  given: object,
): void {
  const { options: of, ...rest }: { readonly options?: object | undefined } = given;
  const there = namesIn(of ?? {}).filter((name) => ALL.includes(name) && !options.includes(name));
  if (there.length > 0) {
    throw new InvalidServingError(
      `ServingClusterModule: ${inWords(there)} in its "options" means nothing to ` +
        `${transport}, whose place is told by ${inWords(options)}`,
    );
  }
  const here = namesIn(rest).filter((name) => !isDialled && ['peers', 'insecure'].includes(name));
  if (here.length > 0) {
    throw new InvalidServingError(
      `ServingClusterModule: ${inWords(here)} means nothing to ${transport}, ` +
        'whose nodes meet at a server',
    );
  }
}

/** Those that say something. */
function namesIn(options: object): readonly string[] {
  return Object.entries(options)
    .filter(([, value]) => value !== undefined)
    .map(([name]) => name);
}

function inWords(names: readonly string[]): string {
  return names.map(formatValue).join(' and ');
}

import { Transport } from '@nestjs/microservices';
import { InvalidServingError } from '../../index.js';
import { formatValue } from '../../doors/text.js';
import type { DistributionOptions } from './options.js';
import { DEFAULT_NAMESPACE } from './resolve-options.js';
import type { ServingTransport } from './transport.js';

/** Loads only the transport's packages; doesn't start it. */
export async function openTransport(given: DistributionOptions): Promise<ServingTransport> {
  const { transport, secret } = given;
  switch (given.transport) {
    case Transport.TCP: {
      checkTransportOptions(
        { transport: 'Transport.TCP', options: ['host', 'port', 'path'], isBrokerless: true },
        given,
      );
      const { TcpTransport } = await import('./transports/tcp/tcp.transport.js');
      const { options, peers, insecure } = given;
      return new TcpTransport({ options, peers, secret, insecure });
    }
    case Transport.GRPC: {
      checkTransportOptions(
        { transport: 'Transport.GRPC', options: ['url'], isBrokerless: true },
        given,
      );
      const { GrpcTransport } = await import('./transports/grpc/grpc.transport.js');
      const { options, peers, insecure } = given;
      return new GrpcTransport({ options, peers, secret, insecure });
    }
    case Transport.NATS: {
      checkTransportOptions(
        { transport: 'Transport.NATS', options: ['servers', 'port'], isBrokerless: false },
        given,
      );
      const { NatsTransport } = await import('./transports/nats/nats.transport.js');
      const { options, namespace = DEFAULT_NAMESPACE } = given;
      return new NatsTransport({ options, namespace });
    }
    case Transport.REDIS: {
      checkTransportOptions(
        { transport: 'Transport.REDIS', options: ['host', 'port'], isBrokerless: false },
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
          'an object that is a ServingTransport',
      );
  }
}

function isTransport(value: unknown): value is ServingTransport {
  return typeof value === 'object' && value !== null && 'broadcast' in value;
}

interface TransportOptions {
  readonly transport: string;
  readonly options: readonly string[];
  readonly isBrokerless: boolean;
}

const ALL = ['host', 'port', 'path', 'url', 'servers'];

/** @throws InvalidServingError naming options of another transport */
function checkTransportOptions(
  { transport, options, isBrokerless }: TransportOptions,
  given: object,
): void {
  const { options: nested, ...rest }: { readonly options?: object | undefined } = given;
  const foreign = namesIn(nested ?? {}).filter(
    (name) => ALL.includes(name) && !options.includes(name),
  );
  if (foreign.length > 0) {
    throw new InvalidServingError(
      `ServingClusterModule: ${inWords(foreign)} in "options" means nothing to ` +
        `${transport}, whose address is set by ${inWords(options)}`,
    );
  }
  const misplaced = namesIn(rest).filter(
    (name) => !isBrokerless && ['peers', 'insecure'].includes(name),
  );
  if (misplaced.length > 0) {
    throw new InvalidServingError(
      `ServingClusterModule: ${inWords(misplaced)} means nothing to ${transport}, ` +
        'whose nodes connect to a broker',
    );
  }
}

function namesIn(options: object): readonly string[] {
  return Object.entries(options)
    .filter(([, value]) => value !== undefined)
    .map(([name]) => name);
}

function inWords(names: readonly string[]): string {
  return names.map(formatValue).join(' and ');
}

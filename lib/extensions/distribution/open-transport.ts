import { Transport } from '@nestjs/microservices';
import { InvalidServingError } from '../../index.js';
import { closestName, formatValue } from '../../doors/text.js';
import type { DistributionOptions } from './options.js';
import { DEFAULT_NAMESPACE } from './resolve-options.js';
import type { ServingTransport, TransportKind } from './transport.js';
import { transports } from './transports/transports.js';

/** Loads only the transport's packages; doesn't start it. */
export async function openTransport(given: DistributionOptions): Promise<ServingTransport> {
  const { transport, secret, namespace = DEFAULT_NAMESPACE } = given;
  const kind = transports.get(transport);
  if (kind) {
    checkAddress(kind, given);
    return kind.open(given as never, { namespace, secret });
  }
  if (isTransport(transport)) {
    return transport;
  }
  const names = [...transports.values()].map(({ name }) => name);
  throw new InvalidServingError(
    `ServingClusterModule: transport ${nameOf(transport)} does not carry servings; ` +
      `allowed are ${names.join(', ')}, and an object that is a ServingTransport`,
  );
}

/** Nest's transports are numbers. */
function nameOf(transport: unknown): string {
  const name = typeof transport === 'number' ? Transport[transport] : undefined;
  return name === undefined ? formatValue(transport) : `Transport.${name}`;
}

function isTransport(value: unknown): value is ServingTransport {
  return typeof value === 'object' && value !== null && 'broadcast' in value;
}

/** @throws InvalidServingError naming options of another transport, or misspelt ones */
function checkAddress({ name, address, isBrokerless }: TransportKind<never>, given: object): void {
  const { options: nested, ...rest }: { readonly options?: object | undefined } = given;
  const others = [...transports.values()].flatMap((each) => each.address);
  const foreign = namesIn(nested ?? {}).filter(
    (each) =>
      !address.includes(each) &&
      (others.includes(each) || closestName(each, address) !== undefined),
  );
  if (foreign.length > 0) {
    throw new InvalidServingError(
      `ServingClusterModule: ${name} has no ${inWords(foreign)} in "options"; set its address ` +
        `with ${inWords(address)}`,
    );
  }
  const misplaced = namesIn(rest).filter(
    (each) => !isBrokerless && ['peers', 'insecure'].includes(each),
  );
  if (misplaced.length > 0) {
    throw new InvalidServingError(
      `ServingClusterModule: ${name} has no ${inWords(misplaced)}, since its nodes connect to a ` +
        'broker; leave it out',
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

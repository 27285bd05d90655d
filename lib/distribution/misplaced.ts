import { InvalidServingError } from '../errors.js';
import { show } from '../show.js';

/** One of Nest's transports, as its users name it, and the options that tell it where to listen and whom to look for. */
export interface Whereabouts {
  readonly transport: string;
  readonly options: readonly string[];
  /** Whether its nodes dial each other, instead of meeting at a server. */
  readonly isDialled: boolean;
}

const ALL = ['host', 'port', 'url', 'servers'];

/**
 * What is meant for another transport would be passed on and mean nothing: the node would listen, or look for others, at a place that nobody has named.
 *
 * @throws InvalidServingError naming what is misplaced
 */
export function refuseMisplaced({ transport, options, isDialled }: Whereabouts, given: object): void {
  const { options: of, ...rest }: { readonly options?: object | undefined } = given;
  const there = namesIn(of ?? {}).filter((name) => ALL.includes(name) && !options.includes(name));
  if (there.length > 0) {
    throw new InvalidServingError(
      `ServingModule, option "distribution": ${inWords(there)} in its "options" means nothing to ${transport}, whose place is told by ${inWords(options)}`,
    );
  }
  const here = namesIn(rest).filter((name) => !isDialled && ['peers', 'insecure'].includes(name));
  if (here.length > 0) {
    throw new InvalidServingError(
      `ServingModule, option "distribution": ${inWords(here)} means nothing to ${transport}, whose nodes meet at a server`,
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
  return names.map(show).join(' and ');
}

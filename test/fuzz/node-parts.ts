import type * as frame from '../../dist/esm/extensions/distribution/wire/frame.js';
import type * as limits from '../../dist/esm/extensions/distribution/wire/limits.js';
import type * as prelude from '../../dist/esm/extensions/distribution/wire/prelude.js';
import type * as handshake from '../../dist/esm/extensions/distribution/transports/handshake.js';
import type * as values from '../../dist/esm/extensions/distribution/wire/values.js';

export type NodeParts = Pick<typeof frame, 'encodeFrame' | 'decodeFrame'> &
  Pick<typeof limits, 'defaultWireLimits'> &
  Pick<typeof prelude, 'Kind' | 'writePrelude'> &
  Pick<typeof handshake, 'hmacOf'> &
  Pick<typeof values, 'encodeValue'>;

/** Parts of a node that the package keeps to itself, from where the build puts them. */
export async function nodeParts(): Promise<NodeParts> {
  const files = [
    'wire/frame',
    'wire/limits',
    'wire/prelude',
    'transports/handshake',
    'wire/values',
  ];
  const [one, two, three, four, five] = await Promise.all(
    files.map(
      (file) =>
        import(
          new URL(`../../../../dist/esm/extensions/distribution/${file}.js`, import.meta.url).href
        ),
    ),
  );
  return { ...one, ...two, ...three, ...four, ...five };
}

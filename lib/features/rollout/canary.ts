import type { CallOptions } from '../../core/context/call-context.js';
import type { Callbacks } from '../../core/definition/resolved-serving.js';
import type { LoadedVersion } from '../../core/versions/loaded-version.js';
import type { VersionPlace, VersionPolicy } from '../../core/versions/version-policy.js';

/** Answers its share of the calls. */
export const canary: VersionPolicy = {
  isHidden: false,
  placeOf: (version, callbacks) => new Canary(version, callbacks),
};

class Canary implements VersionPlace {
  constructor(
    private readonly version: LoadedVersion,
    private readonly callbacks: Callbacks,
  ) {}

  /** A tenant's calls go to one version, others at random. */
  takes(input: unknown, { tenant = this.tenantOf(input) }: CallOptions, left: number): boolean {
    const { label, share } = this.version;
    const place = tenant === '' ? Math.random() : placeOf(this.callbacks.name, label, tenant);
    return place * left < share;
  }

  private tenantOf(input: unknown): string {
    try {
      return this.callbacks.queue?.tenant?.(input) ?? '';
    } catch {
      // The call fails with this error, and is counted, when we resolve its options.
      return '';
    }
  }
}

/**
 * A tenant's place from 0 to 1, evenly spread. A canary gets the tenants below its share, so a
 * larger share keeps them. Places differ by version, so canaries don't all get the same tenants
 * first.
 *
 * FNV-1a, with MurmurHash3's last steps, since its high bits alone are uneven for short names.
 */
function placeOf(serving: string, version: string, tenant: string): number {
  let hash = 0x811c9dc5;
  for (const character of `${serving}\0${version}\0${tenant}`) {
    hash = Math.imul(hash ^ character.codePointAt(0)!, 0x01000193);
  }
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b);
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35);
  return ((hash ^ (hash >>> 16)) >>> 0) / 2 ** 32;
}

/**
 * The place of a tenant from 0 to 1, evenly spread. Below the share of a canary its calls go there:
 * a larger share keeps the tenants of a smaller one. Each version has places of its own, else the
 * same tenants would get every canary first.
 *
 * FNV-1a, with the last steps of MurmurHash3, since its high bits alone are uneven for short names.
 */
export function placeOf(serving: string, version: string, tenant: string): number {
  let hash = 0x811c9dc5;
  for (const character of `${serving}\0${version}\0${tenant}`) {
    hash = Math.imul(hash ^ character.codePointAt(0)!, 0x01000193);
  }
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b);
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35);
  return ((hash ^ (hash >>> 16)) >>> 0) / 2 ** 32;
}

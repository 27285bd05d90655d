/**
 * The path in a request's target, as a router reads it: the target may have a scheme and host, and
 * a fragment (https://datatracker.ietf.org/doc/html/rfc9112#section-3.2).
 */
export function pathOfTarget(target: string): string {
  return target.replace(/^https?:\/\/[^/?#]*/i, '').split(/[?#]/, 1)[0]!;
}

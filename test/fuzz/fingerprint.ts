/**
 * A number that tells two values of JSON apart, without recursion, since they may be of any depth.
 */
export function fingerprint(value: unknown): number {
  const open: unknown[] = [value];
  let print = 17;
  while (open.length > 0) {
    const part = open.pop();
    if (typeof part === 'object' && part !== null) {
      const names = Object.keys(part);
      print = mixed(print, `${Array.isArray(part) ? '[' : '{'}${names.length}`);
      for (const name of names) {
        open.push(Array.isArray(part) ? undefined : name, (part as Record<string, unknown>)[name]);
      }
    } else {
      print = mixed(print, `${typeof part} ${String(part)}`);
    }
  }
  return print;
}

function mixed(print: number, text: string): number {
  let result = print;
  for (let i = 0; i < text.length; i++) {
    result = Math.imul(result ^ text.charCodeAt(i), 16_777_619);
  }
  return result >>> 0;
}

/**
 * Runs every contender once a round and collects what each returned. Every other round goes
 * backwards, so that neither a drift of the machine nor the place in the order favours one of them.
 * A first round, which warms up, does not count.
 */
export async function interleave<Name extends string, Value>(
  rounds: number,
  contenders: Readonly<Record<Name, () => Promise<Value>>>,
): Promise<Record<Name, Value[]>> {
  const names = Object.keys(contenders) as Name[];
  const values = Object.fromEntries(names.map((name) => [name, [] as Value[]])) as Record<
    Name,
    Value[]
  >;
  for (let round = 0; round <= rounds; round++) {
    for (const name of round % 2 ? names.toReversed() : names) {
      const value = await contenders[name]();
      if (round > 0) {
        values[name].push(value);
      }
    }
  }
  return values;
}

/** The name that was probably meant, for errors: one that differs in few letters. */
export function closestName(name: string, known: readonly string[]): string | undefined {
  const most = Math.max(1, Math.floor(name.length / 3));
  const near = known
    .map((each) => ({ each, distance: distanceOf(name.toLowerCase(), each.toLowerCase()) }))
    .filter(({ distance }) => distance <= most)
    .toSorted((one, other) => one.distance - other.distance);
  return near[0]?.each;
}

/** The Levenshtein distance: how many letters must be added, removed or replaced. */
function distanceOf(one: string, other: string): number {
  let above = Array.from({ length: other.length + 1 }, (_, column) => column);
  for (const [row, letter] of Array.from(one).entries()) {
    const current = [row + 1];
    for (const [column, match] of Array.from(other).entries()) {
      const replaced = above[column]! + (letter === match ? 0 : 1);
      current.push(Math.min(replaced, above[column + 1]! + 1, current[column]! + 1));
    }
    above = current;
  }
  return above.at(-1)!;
}

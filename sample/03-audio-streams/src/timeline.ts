/** From where on a chunk counts as speech, as the makers of the model advise. */
const threshold = 0.5;

/** One character for each chunk: `#` for speech, `_` for silence. */
export function timelineOf(probabilities: readonly number[]): string {
  return probabilities.map((probability) => (probability >= threshold ? '#' : '_')).join('');
}

/** A sentence of a topic, and its meaning as a unit vector. */
export interface Example {
  readonly topic: string;
  readonly text: string;
  readonly vector: Float32Array;
}

export interface Classification {
  readonly topic: string;
  /** Above 0, at most 1; the confidences of all topics sum up to 1. */
  readonly confidence: number;
  /** The nearest example sentence. */
  readonly example: string;
}

/** How much a difference in similarity counts in the confidence: the inverse softmax temperature. */
const sharpness = 20;

/** The topic of the nearest example. */
export function nearestTopic(vector: Float32Array, examples: readonly Example[]): Classification {
  const nearest = new Map<string, { readonly text: string; readonly similarity: number }>();
  for (const { topic, text, vector: other } of examples) {
    const similarity = dotProduct(vector, other);
    if (similarity > (nearest.get(topic)?.similarity ?? -Infinity)) {
      nearest.set(topic, { text, similarity });
    }
  }
  const [first, ...others] = [...nearest].toSorted(([, a], [, b]) => b.similarity - a.similarity);
  const [topic, { text, similarity }] = first!;
  const rest = others.reduce(
    (sum, [, other]) => sum + Math.exp(sharpness * (other.similarity - similarity)),
    0,
  );
  return { topic, confidence: 1 / (1 + rest), example: text };
}

/** Of unit vectors this is the cosine similarity. */
function dotProduct(a: Float32Array, b: Float32Array): number {
  return a.reduce((sum, value, i) => sum + value * b[i]!, 0);
}

import type { InferenceSession } from 'onnxruntime-node';
import { Decoding } from './decoding.js';
import { createSampler, type Sampling } from './sampling.js';

/** A prompt as it is sent to the model's thread. */
export interface Prompt extends Sampling {
  readonly tokens: readonly number[];
  /** The most tokens of the answer. */
  readonly maxTokens: number;
  /** The token that ends the answer. It is not part of it. */
  readonly endToken: number;
}

/**
 * Answers prompts together, a token for each at a time, and nothing for one that has ended.
 *
 * @param isWaiting whether a caller still waits for the answer to a prompt; otherwise the answer
 * ends
 */
export async function* generate(
  session: InferenceSession,
  prompts: readonly Prompt[],
  isWaiting: (prompt: number) => boolean = () => true,
): AsyncGenerator<(number | undefined)[]> {
  const decoding = new Decoding(
    session,
    prompts.map(({ tokens }) => tokens),
  );
  const samplers = prompts.map((prompt) => createSampler(prompt));
  let running = [...prompts.keys()];

  for (let count = 1; running.length > 0; count++) {
    const step: (number | undefined)[] = prompts.map(() => undefined);
    for (const [row, logits] of (await decoding.step()).entries()) {
      const prompt = running[row]!;
      const token = samplers[prompt]!(logits);
      step[prompt] = token === prompts[prompt]!.endToken ? undefined : token;
    }
    yield step;

    const ahead = running
      .map((prompt, row) => ({ prompt, row, token: step[prompt] }))
      .filter((each): each is typeof each & { token: number } => each.token !== undefined)
      .filter(({ prompt }) => count < prompts[prompt]!.maxTokens && isWaiting(prompt));
    running = ahead.map(({ prompt }) => prompt);
    decoding.continueWith(ahead);
  }
}

import type { Digit } from './handwritten.js';

export interface Outcome {
  /** How many each node has answered, by its name. */
  readonly answers: ReadonlyMap<string, number>;
  readonly right: number;
  readonly failures: number;
}

/** Number of concurrent callers. */
const CALLERS = 32;

/** Sends so many digits. `progress` gets the number of answers after each. */
export async function load(
  url: string,
  digits: readonly Digit[],
  amount: number,
  progress: (answered: number) => void = () => {},
): Promise<Outcome> {
  const answers = new Map<string, number>();
  let [asked, answered, right, failures] = [0, 0, 0, 0];
  const caller = async (): Promise<void> => {
    while (asked < amount) {
      const { pixels, label } = digits[asked++ % digits.length]!;
      const response = await fetch(`${url}/digits`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ pixels }),
      });
      const { digit, node = '' } = (await response.json()) as { digit?: number; node?: string };
      if (response.ok) {
        answers.set(node, (answers.get(node) ?? 0) + 1);
        right += digit === label ? 1 : 0;
      } else {
        failures++;
      }
      progress(++answered);
    }
  };
  await Promise.all(Array.from({ length: CALLERS }, caller));
  return { answers, right, failures };
}

import { readFileSync } from 'node:fs';
import type { SquareRow } from '../server/options.js';
import type { HttpClient } from './http-client.js';

/** A call over HTTP, and how to know its own answer from those of others. */
export interface Call {
  readonly path: string;
  readonly content: object;
  isOwn(answer: unknown): boolean;
}

/** Makes the calls of one client, one after the other. */
export type MakeCall = () => Call;

let nextId = 1;

/** A number that nobody else sends. */
export function squareCall(row: Omit<SquareRow, 'id'> = {}): Call & { readonly id: number } {
  const id = nextId++;
  return {
    path: '/squares',
    content: { id, ...row },
    id,
    isOwn: (answer) => (answer as { square?: number }).square === id ** 2,
  };
}

/** Handwritten digits with the probabilities that the model gives them in peace. */
export class Digits {
  private constructor(private readonly known: readonly KnownDigit[]) {}

  /** Keeps those of which no two could be mistaken for each other. */
  static async ask(client: HttpClient): Promise<Digits> {
    const digits = await Promise.all(
      readImages().map(async (image) => {
        const { body } = await client.send('POST', '/digits', { image });
        return { image, probabilities: JSON.parse(body) as number[] };
      }),
    );
    const known: KnownDigit[] = [];
    for (const digit of digits) {
      if (
        known.every(
          ({ probabilities }) => distance(probabilities, digit.probabilities) > 2 * TOLERANCE,
        )
      ) {
        known.push(digit);
      }
    }
    return new Digits(known);
  }

  call(index: number): Call {
    const { image, probabilities } = this.known[index % this.known.length]!;
    return {
      path: '/digits',
      content: { image },
      isOwn: (answer) =>
        Array.isArray(answer) && distance(probabilities, answer as number[]) <= TOLERANCE,
    };
  }
}

interface KnownDigit {
  /** Its pixels, a byte for each, in base 64. */
  readonly image: string;
  readonly probabilities: readonly number[];
}

/** Sums of floating-point numbers may differ a little with the size of the batch. */
const TOLERANCE = 1e-5;

function distance(some: readonly number[], others: readonly number[]): number {
  return Math.max(...some.map((value, place) => Math.abs(value - (others[place] ?? Infinity))));
}

/** In the file, a digit is a byte for the label and a byte for each pixel. */
function readImages(): string[] {
  const file = readFileSync('sample/01-digits/model/digits.bin');
  const size = 1 + 28 ** 2;
  return Array.from({ length: 64 }, (_, index) =>
    file.subarray(index * size + 1, (index + 1) * size).toString('base64'),
  );
}

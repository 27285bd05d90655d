import { type InferenceSession } from 'onnxruntime-node';
import { Tensor } from 'nestjs-serving';
import { emptyCache, fromResults, keepRows, type KvCache, toFeeds } from './kv-cache.js';

/**
 * Rows of tokens that a language model continues together. The KV cache keeps the tokens before, so a
 * step runs one token per row.
 *
 * Rows of different lengths are aligned at their end by padding before their first tokens. The
 * attention mask hides it, and positions count from a row's own first token.
 */
export class Decoding {
  private cache: KvCache;
  private padding: readonly number[];
  private length = 0;

  constructor(
    private readonly session: InferenceSession,
    private next: readonly (readonly number[])[],
  ) {
    const longest = Math.max(...next.map(({ length }) => length));
    this.padding = next.map(({ length }) => longest - length);
    this.next = next.map((tokens, row) => [
      ...Array.from({ length: this.padding[row]! }, () => 0),
      ...tokens,
    ]);
    this.cache = emptyCache(session, next.length);
  }

  /**
   * Runs the next tokens, at first the prompts, and returns for each row the logits of the token
   * after them.
   */
  async step(): Promise<Float32Array[]> {
    const past = this.length;
    this.length += this.next[0]!.length;
    const mask = this.padding.map((padding) =>
      range(0, this.length, (token) => (token < padding ? 0 : 1)),
    );
    const positions = this.padding.map((padding) =>
      range(past, this.length, (token) => Math.max(0, token - padding)),
    );
    const results = await this.session.run({
      input_ids: integers(this.next),
      attention_mask: integers(mask),
      position_ids: integers(positions),
      ...toFeeds(this.cache),
    });
    this.cache = fromResults(results);
    return lastOfEachRow(results['logits'] as Tensor);
  }

  /**
   * Appends a token to each of these rows and drops the other rows, so the next step takes less
   * time.
   */
  continueWith(rows: readonly { readonly row: number; readonly token: number }[]): void {
    this.next = rows.map(({ token }) => [token]);
    if (rows.length < this.padding.length) {
      const kept = rows.map(({ row }) => row);
      this.padding = kept.map((row) => this.padding[row]!);
      this.cache = keepRows(this.cache, kept);
    }
  }
}

function range(start: number, end: number, value: (index: number) => number): number[] {
  return Array.from({ length: end - start }, (_, index) => value(start + index));
}

function integers(rows: readonly (readonly number[])[]): Tensor {
  return new Tensor('int64', BigInt64Array.from(rows.flat(), BigInt), [
    rows.length,
    rows[0]!.length,
  ]);
}

function lastOfEachRow(logits: Tensor): Float32Array[] {
  const [rows, length, vocabulary] = logits.dims as [number, number, number];
  const data = logits.data as Float32Array;
  return range(0, rows, (row) => (row + 1) * length * vocabulary).map((end) =>
    data.subarray(end - vocabulary, end),
  );
}

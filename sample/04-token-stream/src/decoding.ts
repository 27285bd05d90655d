import { type InferenceSession } from 'onnxruntime-node';
import { Tensor } from 'nestjs-serving';
import { type CachedRow, emptyCache, fromResults, gather, toFeeds } from './kv-cache.js';

/**
 * Rows of tokens that a language model continues together. The KV cache keeps the tokens before, so a
 * step runs one token per row.
 *
 * Rows of different lengths are aligned at their end by padding before their first tokens. The
 * attention mask hides it, and positions count from a row's own first token.
 */
export class Decoding {
  private constructor(
    private readonly session: InferenceSession,
    private cache = emptyCache(session, 0),
    /** The number of tokens of each row. */
    private lengths: readonly number[] = [],
  ) {}

  /** Reads the beginnings of new rows, which may have any lengths. */
  static async begin(
    session: InferenceSession,
    tokens: readonly (readonly number[])[],
  ): Promise<Decoding> {
    const cache = emptyCache(session, tokens.length);
    const decoding = new Decoding(
      session,
      cache,
      tokens.map(() => 0),
    );
    if (tokens.some(({ length }) => length > 0)) {
      await decoding.read(tokens);
    }
    return decoding;
  }

  /** Rows of other decodings, in this order. */
  static of(session: InferenceSession, rows: readonly CachedRow[]): Decoding {
    return new Decoding(
      session,
      gather(rows),
      rows.map(({ length }) => length),
    );
  }

  /** The row as it is now. */
  row(index: number): CachedRow {
    return { cache: this.cache, index, length: this.lengths[index]! };
  }

  /** Appends these tokens to the rows, and returns for each the logits of the token after them. */
  async read(tokens: readonly (readonly number[])[]): Promise<Float32Array[]> {
    const past = Math.max(...this.lengths);
    const added = Math.max(...tokens.map(({ length }) => length));
    const lengths = this.lengths.map((length, row) => length + tokens[row]!.length);
    const paddings = lengths.map((length) => past + added - length);
    const results = await this.session.run({
      input_ids: integers(
        tokens.map((own) => range(own.length - added, own.length, (token) => own[token] ?? 0)),
      ),
      attention_mask: integers(
        paddings.map((padding) => range(0, past + added, (token) => (token < padding ? 0 : 1))),
      ),
      position_ids: integers(
        paddings.map((padding) =>
          range(past, past + added, (token) => Math.max(0, token - padding)),
        ),
      ),
      ...toFeeds(this.cache),
    });
    this.cache = fromResults(results);
    this.lengths = lengths;
    return lastOfEachRow(results['logits'] as Tensor);
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

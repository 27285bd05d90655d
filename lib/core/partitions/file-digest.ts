import { createHash } from 'node:crypto';
import { open } from 'node:fs/promises';

/** Bytes per read. */
export const PIECE = 1 << 20;

/** SHA-256 in base64. */
export async function digestOf(
  path: string,
  visit?: (piece: Uint8Array, at: number) => void,
): Promise<string> {
  const hash = createHash('sha256');
  for await (const [piece, at] of piecesOf(path)) {
    hash.update(piece);
    visit?.(piece, at);
  }
  return hash.digest('base64');
}

/** Each piece overwrites the previous one. */
export async function* piecesOf(path: string): AsyncGenerator<[piece: Buffer, at: number], void> {
  const file = await open(path);
  try {
    const piece = Buffer.alloc(PIECE);
    // Yarn PnP's file handles read nothing without all arguments.
    for (let at = 0, count = 1; count > 0; at += count) {
      count = (await file.read(piece, 0, piece.length)).bytesRead;
      yield [piece.subarray(0, count), at];
    }
  } finally {
    await file.close();
  }
}

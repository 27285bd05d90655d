import { PIECE, piecesOf } from './file-pieces.js';

/** In protobuf, the file name of a tensor's external data follows these bytes. */
const LOCATION = Buffer.from('\x0a\x08location\x12');

/** A model compiled for a device; the compiled code may be in another file. */
const COMPILED = 'EPContext';

const QUANTISES = 'DynamicQuantizeLinear';

/** Overlap of pieces in bytes, for a location with the longest possible path. */
const LONGEST = 8192;

/** Searches a model file for external files and operators, piece by piece. */
export class ModelScan {
  readonly externalFiles = new Set<string>();
  isCompiled = false;
  /** True if it quantises at run time over the whole batch. */
  isDynamicallyQuantised = false;
  /** The last piece's end, in case a match spans two, and the new piece. */
  private readonly window = Buffer.allocUnsafe(LONGEST + PIECE);
  private length = 0;

  /** @param piece at most {@link PIECE} bytes */
  add(piece: Uint8Array): void {
    this.window.set(piece, this.length);
    this.length += piece.length;
    this.search(Math.max(0, this.length - LONGEST));
  }

  end(): this {
    this.search(this.length);
    return this;
  }

  private search(end: number): void {
    const bytes = this.window.subarray(0, this.length);
    locationsIn(bytes, end).forEach((file) => this.externalFiles.add(file));
    this.isCompiled ||= bytes.includes(COMPILED);
    this.isDynamicallyQuantised ||= bytes.includes(QUANTISES);
    bytes.copyWithin(0, end);
    this.length -= end;
  }
}

export function scanOf(bytes: Uint8Array): ModelScan {
  const scan = new ModelScan();
  for (let at = 0; at < bytes.length; at += PIECE) {
    scan.add(bytes.subarray(at, at + PIECE));
  }
  return scan.end();
}

/** The files that the model refers to. */
export async function externalFilesIn(path: string): Promise<ReadonlySet<string>> {
  const scan = new ModelScan();
  for await (const [piece] of piecesOf(path)) {
    scan.add(piece);
  }
  return scan.end().externalFiles;
}

function locationsIn(model: Buffer, end: number): string[] {
  const files: string[] = [];
  for (
    let at = model.indexOf(LOCATION);
    at >= 0 && at < end;
    at = model.indexOf(LOCATION, at + 1)
  ) {
    files.push(textAt(model, at + LOCATION.length));
  }
  return files;
}

/** A protobuf string: its length as a varint, then its characters. */
function textAt(message: Buffer, start: number): string {
  let length = 0;
  let at = start;
  for (let shift = 0, group = 128; group > 127 && shift < 28; shift += 7) {
    group = message[at++] ?? 0;
    length |= (group & 127) << shift;
  }
  return message.toString('utf8', at, at + length);
}

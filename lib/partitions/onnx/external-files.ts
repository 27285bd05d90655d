import { createReadStream } from 'node:fs';

/** In the protobuf of a tensor with external data: the key "location" before the file name. */
const LOCATION = Buffer.from('\x0a\x08location\x12');

/** The operation of a model compiled for a device; the compiled code may be in another file. */
const COMPILED = 'EPContext';

/** The files that a model refers to; undefined if there are none. */
export function externalFilesOf(bytes: Uint8Array): string[] | undefined {
  const model = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const files = new Set(locationsIn(model, model.length));
  return files.size > 0 || model.includes(COMPILED) ? [...files] : undefined;
}

/** Bytes in which a location ends, with a path of the longest length. */
const LONGEST = 8192;

/** The files that the model at this path refers to. Reads the model in pieces. */
export async function externalFilesIn(path: string): Promise<ReadonlySet<string>> {
  const files = new Set<string>();
  let rest = Buffer.alloc(0);
  for await (const piece of createReadStream(path, { highWaterMark: 1 << 20 })) {
    const bytes = Buffer.concat([rest, piece as Buffer]);
    const end = Math.max(0, bytes.length - LONGEST);
    locationsIn(bytes, end).forEach((file) => files.add(file));
    rest = bytes.subarray(end);
  }
  locationsIn(rest, rest.length).forEach((file) => files.add(file));
  return files;
}

/** The locations that begin before `end`. */
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

/** The text of a protobuf field: its length as a varint, then its characters. */
function textAt(message: Buffer, start: number): string {
  let length = 0;
  let at = start;
  for (let shift = 0, group = 128; group > 127 && shift < 28; shift += 7) {
    group = message[at++] ?? 0;
    length |= (group & 127) << shift;
  }
  return message.toString('utf8', at, at + length);
}

import { bytesOf, type PlatformRequest, RequestError, typeOfBody } from './http.js';

/** Fields in the form's order; files are their bytes. */
export type Form = readonly (readonly [name: string, value: string | Uint8Array])[];

/**
 * Reads a form with files.
 *
 * @throws RequestError for other bodies, and beyond the limit
 * @throws CallCancelledError if the client disconnects early
 */
export async function readForm(request: PlatformRequest, limit: number): Promise<Form> {
  const { raw = request } = request;
  const type = typeOfBody(raw);
  if (raw.readableEnded) {
    throw new RequestError(
      'The body of the request was read before it came here, by a middleware of the application; ' +
        'leave forms to this endpoint',
    );
  }
  const body = await bytesOf(raw, limit);
  const [, quoted, plain] =
    /^multipart\/form-data\s*;.*boundary=(?:"([^"]+)"|([^;\s]+))/i.exec(type) ?? [];
  const boundary = quoted ?? plain;
  const form = boundary === undefined ? undefined : await formIn(body, boundary);
  if (!form) {
    throw new RequestError(
      `The body of the request is no form (multipart/form-data), but ${type || 'has no type'}`,
    );
  }
  return form;
}

const MOST_PARTS = 64;

/** Bytes; no part needs a larger head. */
const MOST_OF_HEAD = 4096;

/** Contents up to this size are left to the parser, which copies them several times in one go. */
const SMALL_CONTENT = 2 ** 14;

/** See https://www.rfc-editor.org/rfc/rfc2046#section-5.1 */
interface Part {
  readonly head: Buffer;
  readonly content: Buffer;
}

/**
 * Lets the platform read the heads, without large contents. Undefined for bytes that are no form.
 */
async function formIn(body: Buffer, boundary: string): Promise<Form | undefined> {
  const parts = partsOf(body, boundary);
  if (!parts) {
    return undefined;
  }
  const rest = parts.flatMap(({ head, content }) => [
    Buffer.from(`--${boundary}`),
    head,
    isSmall(content) ? content : Buffer.alloc(0),
    Buffer.from('\r\n'),
  ]);
  const parsed = new Response(Buffer.concat([...rest, Buffer.from(`--${boundary}--\r\n`)]), {
    headers: { 'content-type': `multipart/form-data; boundary="${boundary}"` },
  });
  const fields = await parsed.formData().then(
    (form) => [...form],
    () => [],
  );
  return fields.length === parts.length
    ? fields.map(([name, value], i) => [name, valueOf(value, parts[i]!)])
    : undefined;
}

function valueOf(value: string | Blob, { content }: Part): string | Uint8Array {
  if (value instanceof Blob) {
    return new Uint8Array(content.buffer, content.byteOffset, content.length);
  }
  return isSmall(content) ? value : content.toString();
}

function isSmall(content: Buffer): boolean {
  return content.length <= SMALL_CONTENT;
}

/**
 * Undefined for bytes that are no parts.
 *
 * @throws RequestError for too many
 */
function partsOf(body: Buffer, boundary: string): readonly Part[] | undefined {
  const parts: Part[] = [];
  const first = body.indexOf(`--${boundary}`);
  if (first < 0) {
    return undefined;
  }
  let at = first + 2 + boundary.length;
  while (body.toString('latin1', at, at + 2) !== '--') {
    if (parts.length === MOST_PARTS) {
      throw new RequestError(
        `The form has more than ${MOST_PARTS} parts; send a part for each field`,
      );
    }
    const begin = body.indexOf('\r\n\r\n', at) + 4;
    const end = body.indexOf(`\r\n--${boundary}`, begin);
    if (begin < 4 || end < 0 || begin - at > MOST_OF_HEAD) {
      return undefined;
    }
    parts.push({ head: body.subarray(at, begin), content: body.subarray(begin, end) });
    at = end + 4 + boundary.length;
  }
  return parts;
}

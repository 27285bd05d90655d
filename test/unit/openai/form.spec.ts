import { Readable } from 'node:stream';
import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { type Form, readForm } from '../../../lib/extensions/openai/form.js';
import { type PlatformRequest, RequestError } from '../../../lib/extensions/openai/http.js';

interface Sent {
  /** Bytes of a chunk. */
  readonly chunk?: number;
  /** True if the client states the length. */
  readonly isSized?: boolean;
}

function read(body: Buffer, type: string, { chunk = 65_536, isSized = true }: Sent = {}) {
  const chunks = Array.from({ length: Math.ceil(body.length / chunk) }, (_, i) =>
    Buffer.from(body.subarray(i * chunk, (i + 1) * chunk)),
  );
  const request = Readable.from(chunks, { objectMode: false });
  const length = isSized ? { 'content-length': String(body.length) } : {};
  Object.assign(request, { headers: { 'content-type': type, ...length } });
  return readForm(request as unknown as PlatformRequest, 2 ** 25);
}

/** The form as the platform writes it. */
async function written(fields: Form): Promise<{ readonly body: Buffer; readonly type: string }> {
  const form = new FormData();
  for (const [name, value] of fields) {
    if (typeof value === 'string') {
      form.append(name, value);
    } else {
      form.append(name, new Blob([value]), `${name}.wav`);
    }
  }
  const response = new Response(form);
  return {
    body: Buffer.from(await response.arrayBuffer()),
    type: response.headers.get('content-type')!,
  };
}

const bytes = (form: Form): unknown[] =>
  form.map(([name, value]) => [
    name,
    typeof value === 'string' ? value : Buffer.from(value).toString('base64'),
  ]);

const sizes = fc.oneof(fc.nat({ max: 40 }), fc.integer({ min: 16_000, max: 40_000 }));
const contents = fc
  .tuple(fc.constantFrom('\r\n', '--', '\r\n--', 'é', '\0', '\r\n\r\n', 'RIFF', '"'), sizes)
  .map(([part, size]) => Buffer.from(part.repeat(size)).subarray(0, size));
const forms = fc.array(
  fc.tuple(
    fc.constantFrom('file', 'model', 'timestamp_granularities[]', 'a "quoted" name', 'é'),
    fc.oneof(
      fc.string(),
      contents,
      fc.constantFrom('x'.repeat(20_000), 'é'.repeat(8192), 'é'.repeat(8193)),
    ),
  ),
  { minLength: 1, maxLength: 5 },
);

describe('A form', () => {
  it('[23.9] has the fields and files that the platform reads in it, however it arrives', async () => {
    await fc.assert(
      fc.asyncProperty(
        forms,
        fc.integer({ min: 500, max: 100_000 }),
        fc.boolean(),
        async (fields, chunk, isSized) => {
          const { body, type } = await written(fields);
          const known = await new Response(new Uint8Array(body), {
            headers: { 'content-type': type },
          }).formData();
          const expected: [string, string | Uint8Array][] = [];
          for (const [name, value] of known) {
            expected.push([name, typeof value === 'string' ? value : await value.bytes()]);
          }
          expect(bytes(await read(body, type, { chunk, isSized }))).toEqual(bytes(expected));
        },
      ),
    );
  });

  it('[23.9] is refused if it ends anywhere before its end', async () => {
    await fc.assert(
      fc.asyncProperty(forms, fc.nat(), async (fields, end) => {
        const { body, type } = await written(fields);
        // The last line may lack its end.
        const part = body.subarray(0, end % (body.length - 4));
        await expect(read(part, type)).rejects.toThrow(RequestError);
      }),
    );
  });

  it('[23.9] of several megabytes is read as a small one', async () => {
    const file = Buffer.alloc(3 * 2 ** 20, 'RIFF\r\n--');
    const { body, type } = await written([
      ['file', file],
      ['model', 'ear'],
    ]);
    for (const isSized of [true, false]) {
      const [[, audio], model] = (await read(body, type, { isSized })) as [Form[0], Form[1]];
      expect(Buffer.compare(file, audio as Uint8Array)).toBe(0);
      expect(model).toEqual(['model', 'ear']);
    }
  });

  it.each([
    ['bytes without parts', 'hello'],
    [
      'a part with a large head',
      `--x\r\ncontent-disposition: form-data; name="${'a'.repeat(5000)}"\r\n\r\na\r\n--x--\r\n`,
    ],
    ['a part without a blank line', '--x\r\ncontent-disposition: form-data; name="a"\r\n--x--\r\n'],
    ['a part without a name', '--x\r\ncontent-type: text/plain\r\n\r\na\r\n--x--\r\n'],
    ['another boundary', '--y\r\ncontent-disposition: form-data; name="a"\r\n\r\na\r\n--y--\r\n'],
  ])('[23.9] is refused if it has %s', async (_, body) => {
    await expect(read(Buffer.from(body), 'multipart/form-data; boundary=x')).rejects.toThrow(
      'is no form (multipart/form-data), but multipart/form-data; boundary=x',
    );
  });
});

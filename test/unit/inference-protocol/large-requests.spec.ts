import { describe, expect, it } from '@jest/globals';
import { InvalidInputError, OverloadedError } from 'nestjs-serving';
import { requestThread } from '../../../lib/extensions/inference-protocol/server/http/read-request.js';

/** Makes a body of this size in mebibytes. Its JSON is `{`. */
function body(mebibytes: number) {
  const bytes = new Uint8Array(mebibytes * 2 ** 20);
  bytes[0] = '{'.charCodeAt(0);
  return { body: bytes, length: 1, model: 'net', version: undefined };
}

describe('Requests with much JSON', () => {
  it('[FZ2] are refused while others of 256 MiB wait for the thread that reads them', async () => {
    const first = requestThread.read(body(200), undefined);
    const refused = requestThread.read(body(57), undefined);
    const second = requestThread.read(body(56), undefined);

    await expect(refused).rejects.toThrow(OverloadedError);
    await expect(refused).rejects.toThrow(
      'Large requests of 209715200 bytes wait to be read, and 268435456 is the most',
    );
    await expect(first).rejects.toThrow(InvalidInputError);
    await expect(second).rejects.toThrow('is not JSON');
    // Its memory has moved.
    const again = body(256);
    await expect(requestThread.read(again, undefined)).rejects.toThrow('is not JSON');
    expect(again.body.length).toBe(0);
  });

  it('[FZ2] of a caller that has left are not read', async () => {
    const leave = new AbortController();
    const first = requestThread.read(body(1), undefined);
    const left = body(1);
    const reading = requestThread.read(left, leave.signal);
    leave.abort(new Error('left'));

    await expect(reading).rejects.toThrow('left');
    await expect(first).rejects.toThrow('is not JSON');
    expect(left.body.length).toBe(2 ** 20);
  });

  it('[FZ2] that cannot be sent to the thread fail alone', async () => {
    const odd = { ...body(1), version: (() => 0) as never };

    const all = [body(1), odd, body(1)].map((request) => requestThread.read(request, undefined));
    await expect(all[0]).rejects.toThrow('is not JSON');
    await expect(all[1]).rejects.toThrow('could not be cloned');
    await expect(all[2]).rejects.toThrow('is not JSON');
  });
});

import { describe, expect, it } from '@jest/globals';
import { readForm } from '../../../lib/extensions/openai/form.js';
import { beginEvents, type PlatformRequest } from '../../../lib/extensions/openai/http.js';

/** A stream of outputs that notes its end. */
class Outputs implements AsyncIterable<unknown> {
  returns = 0;

  [Symbol.asyncIterator](): AsyncIterator<unknown> {
    let output = 0;
    return {
      next: async () => ({ done: output === 3, value: { output: output++ } }),
      return: async () => ({ done: true, value: this.returns++ }),
    };
  }
}

async function* textOf(outputs: AsyncIterable<number>): AsyncGenerator<string> {
  for await (const output of outputs) {
    yield `${output}`;
  }
}

describe("A client of OpenAI's API that leaves early", () => {
  it('[FR14] A stream of events ends its source when it is left before its first event', async () => {
    const outputs = new Outputs();
    const events = await beginEvents(outputs, textOf);

    await events[Symbol.asyncIterator]().return!();

    expect(outputs.returns).toBe(1);
  });

  it('[FR14] A stream of events ends its source once, after its last event or when it is left', async () => {
    const read = new Outputs();
    const texts: string[] = [];
    for await (const text of await beginEvents(read, textOf)) {
      texts.push(text);
    }
    expect([texts, read.returns]).toEqual([['0', '1', '2'], 1]);

    const left = new Outputs();
    for await (const text of await beginEvents(left, textOf)) {
      expect(text).toBe('0');
      break;
    }
    expect(left.returns).toBe(1);
  });

  it('[FR14] A form that a middleware has read is refused, and not waited for', async () => {
    const request = { readableEnded: true, headers: {} } as PlatformRequest;

    await expect(readForm(request, 1000)).rejects.toThrow(
      'The body of the request was read before it came here, by a middleware',
    );
  });
});

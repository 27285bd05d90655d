import { describe, expect, it } from '@jest/globals';
import { withProgress } from '../../../sample/fetch-package/src/progress.js';

describe('withProgress', () => {
  it('On a terminal one bar moves', async () => {
    const written = await show(true, 8e6);

    expect(written[3]).toBe(`\rfetching [${'='.repeat(15)}${' '.repeat(15)}] 4.0 of 8.0 MB`);
    expect(written.at(-1)).toBe('\n');
  });

  it('In a log one line is written per quarter', async () => {
    const quarters = ['1.0', '2.0', '4.0', '6.0', '8.0'].map(
      (mega) => `fetching: ${mega} of 8.0 MB\n`,
    );

    await expect(show(false, 8e6)).resolves.toEqual(quarters);
  });

  it('Progress works without a length', async () => {
    await expect(show(false, 0)).resolves.toEqual(['fetching: 1.0 of ? MB\n']);
  });
});

async function show(isTTY: boolean, total: number): Promise<string[]> {
  const written: string[] = [];
  const out = {
    isTTY,
    write: (text: string) => written.push(text),
  } as unknown as NodeJS.WriteStream;
  for await (const chunk of withProgress(megabytes(8), 'fetching', total, out)) {
    expect(chunk).toHaveLength(1e6);
  }
  return written;
}

async function* megabytes(count: number) {
  for (let index = 0; index < count; index++) {
    yield new Uint8Array(1e6);
  }
}

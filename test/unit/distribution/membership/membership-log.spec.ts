import { expect, it } from '@jest/globals';
import { VirtualTime } from 'nestjs-serving/testing';
import { RateLimitedLogger } from '../../../../lib/extensions/distribution/serving-cluster.js';

it('[11] A repeated warning is logged every ten seconds with the number of repetitions', async () => {
  const time = await VirtualTime.install();
  try {
    const lines: string[] = [];
    const complaints = new RateLimitedLogger({ warn: (line: string) => lines.push(line) });

    for (let second = 0; second < 11; second++) {
      complaints.warn('A packet without a signature');
      await time.advance(1000);
    }
    await time.advance(10_000);
    complaints.warn('A packet of 7 bytes');

    expect(lines).toEqual([
      'A packet without a signature',
      'A packet without a signature (and 9 more since the last warning)',
      'A packet of 7 bytes',
    ]);
  } finally {
    time.restore();
  }
});

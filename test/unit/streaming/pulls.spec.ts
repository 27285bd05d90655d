import { describe, expect, it } from '@jest/globals';
import { Pulls } from '../../../lib/core/streaming/pull-ahead.js';
import { turn } from '../../fixtures/async/virtual-time.js';

const piece = { size: 1, cost: 0, isOver: true, fail: () => {}, onEnd: () => {} };

/** A call whose source yields this many pieces, at most two of which are in progress. */
function begun(pulls: Pulls, pieces: number, start = () => piece) {
  const source = Array.from({ length: pieces }, () => 1).values();
  return pulls.begin({
    source,
    window: 2,
    isOpen: false,
    mostCost: Infinity,
    costOf: () => 0,
    start,
  });
}

describe('The pulls of a serving that closes', () => {
  it('[L4] Closing does not wait for the reader of a stream whose work has ended', async () => {
    const pulls = new Pulls();
    await pulls.readerOf(begun(pulls, 1), () => {}).next();
    await turn();

    await expect(pulls.close(new Error('closed'))).resolves.toBeUndefined();
  });

  it.each([
    ['has pieces that were not started', 3, () => piece],
    ['has a piece that runs', 1, () => ({ ...piece, isOver: false })],
  ])('[L4] Closing waits for the reader of a stream that %s', async (_, pieces, start) => {
    const pulls = new Pulls();
    const pulled = begun(pulls, pieces, start);
    await pulled.next();
    await turn();
    let isClosed = false;

    const closed = pulls.close(new Error('closed')).then(() => (isClosed = true));
    await turn();
    expect(isClosed).toBe(false);
    pulls.end(pulled);

    await closed;
  });
});

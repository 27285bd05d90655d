import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { FileChange, SETTLE_TIME } from '../../../../lib/features/rollout/file-watch.js';

describe('FileChange', () => {
  it('[17.7] A file has changed once two looks, far enough apart, find the same new content', () => {
    const change = new FileChange('a');

    expect(change.look('a', 0)).toBe('same');
    expect(change.look('b', 100)).toBe('pending');
    expect(change.look('b', 100 + SETTLE_TIME - 1)).toBe('pending');
    expect(change.look('b', 100 + SETTLE_TIME)).toBe('changed');
    expect(change.look('b', 5000)).toBe('same');
  });

  it('[17.7] A file that is still written, is gone, or is as before, has not changed', () => {
    const change = new FileChange('a');

    expect(change.look('b', 0)).toBe('pending');
    expect(change.look('c', 600)).toBe('pending');
    expect(change.look(undefined, 1200)).toBe('same');
    expect(change.look('c', 1300)).toBe('pending');
    expect(change.look('a', 1900)).toBe('same');
    expect(change.look('c', 2000)).toBe('pending');
  });

  it('[17.7] Whatever the looks find: each content is reported once at most, and only when it was the same for long enough', () => {
    fc.assert(
      fc.property(
        fc.array(
          fc.record({
            stamp: fc.constantFrom('a', 'b', 'c', undefined),
            after: fc.integer({ min: 1, max: 700 }),
          }),
        ),
        (looks) => {
          const change = new FileChange('a');
          let now = 0;
          let sameSince = 0;
          let loaded: string | undefined = 'a';
          let before: string | undefined = 'a';
          for (const { stamp, after } of looks) {
            now += after;
            sameSince = stamp === before ? sameSince : now;
            before = stamp;
            const isChanged = change.look(stamp, now) === 'changed';
            const isDue = stamp !== undefined && stamp !== loaded && now - sameSince >= SETTLE_TIME;
            expect(isChanged).toBe(isDue);
            loaded = isChanged ? stamp : loaded;
          }
        },
      ),
    );
  });
});

import { describe, expect, it } from '@jest/globals';
import { busyBatcher, runAll } from '../../fixtures/batching/busy-batcher.js';
import { OverloadedError } from 'nestjs-serving';
import { later, useVirtualTime } from '../../fixtures/async/virtual-time.js';

describe('Batcher: tenants', () => {
  useVirtualTime();

  it.each([0, 10])(
    '[7.4] 5000 rows of one tenant delay a row of another by one batch, with a timeout of %s',
    async (batchTimeout) => {
      const batcher = await busyBatcher({ batchSize: 32, batchTimeout, maxRows: 20_000 });
      batcher.ask('many', { tenant: 'many', size: 5000 });
      await later(batchTimeout);
      for (let i = 0; i < 5; i++) {
        batcher.finishBatch();
        await later();
      }

      batcher.ask('one', { tenant: 'one' });
      await later(batchTimeout);
      batcher.finishBatch();
      await later();

      expect(batcher.running[0]).toContain('one0');
      expect(batcher.running[0]!.split(' ')).toHaveLength(1 + 32);
      await runAll(batcher);
    },
  );

  it('[7.4] Many rows of one tenant do not delay a call without a tenant', async () => {
    const batcher = await busyBatcher({ batchSize: 4 });
    batcher.ask('many', { tenant: 'many', size: 100 });
    batcher.ask('one');

    const ran = await runAll(batcher);

    expect(ran.slice(0, 2).join(' ')).toContain('one0');
  });

  it('[7.4] Each tenant gets the same share, whatever the number of rows per call', async () => {
    const batcher = await busyBatcher({ batchSize: 6, maxRows: 20_000 });
    batcher.ask('a', { tenant: 'a', size: 600 });
    for (let i = 0; i < 300; i++) {
      batcher.ask('b', { tenant: 'b', size: 2 });
    }

    const shares = sharesOf(await runAll(batcher), 60);

    expect(Math.abs(shares['a']! - shares['b']!)).toBeLessThanOrEqual(6);
  });

  it('[7.4] Tenants get shares by weight while all have rows, and unused shares go to the others', async () => {
    const batcher = await busyBatcher({ batchSize: 6, weights: { a: 3, b: 2 }, maxRows: 20_000 });
    ['a', 'b', 'c'].forEach((tenant) => batcher.ask(tenant, { tenant, size: 600 }));

    const ran = await runAll(batcher);

    const shares = sharesOf(ran, 100);
    expect(shares['a']).toBeGreaterThan(290);
    expect(shares['a']).toBeLessThan(310);
    expect(shares['b']).toBeGreaterThan(190);
    expect(shares['b']).toBeLessThan(210);
    expect(shares['c']).toBeGreaterThan(90);
    expect(sharesOf(ran, 300)).toEqual({ a: 600, b: 600, c: 600 });
  });

  it('[7.4] No tenant starves beside tenants that always have new rows', async () => {
    const batcher = await busyBatcher({ batchSize: 2, maxRows: 100_000 });
    batcher.ask('waits', { tenant: 'waits', size: 20 });
    let batches = 0;

    for (; batches < 100 && batcher.depth > 0; batches++) {
      ['a', 'b', 'c'].forEach((tenant) => batcher.ask(tenant, { tenant, size: 2 }));
      batcher.finishBatch();
      await later(1);
      if (
        batcher.started
          .flatMap(({ parts }) => parts)
          .some(({ request, offset, count }) => request.name === 'waits' && offset + count === 20)
      ) {
        break;
      }
    }

    // A fourth of the rows, of which each batch has two.
    expect(batches).toBeLessThanOrEqual(44);
    await runAll(batcher);
  });

  it('[7.4] Tenants share within a level of priority and not between levels', async () => {
    const batcher = await busyBatcher({ batchSize: 2 });
    batcher.ask('high', { tenant: 'a', priority: 1, size: 4 });
    batcher.ask('a', { tenant: 'a', size: 2 });
    batcher.ask('b', { tenant: 'b', size: 2 });

    const ran = await runAll(batcher);

    expect(ran.slice(0, 2)).toEqual(['high0 high1', 'high2 high3']);
    expect(sharesOf(ran.slice(2), 2)).toEqual({ a: 2, b: 2 });
  });

  it('[4.6] The rows of each tenant keep their order', async () => {
    const batcher = await busyBatcher({ batchSize: 5 });
    for (let i = 0; i < 12; i++) {
      batcher.ask(`${'ab'[i % 2]}-${i}-`, { tenant: 'ab'[i % 2]!, size: 1 + (i % 3) });
    }

    const rows = (await runAll(batcher)).flatMap((batch) => batch.split(' '));

    for (const tenant of 'ab') {
      const own = rows.filter((row) => row.startsWith(tenant));
      const asked = Array.from({ length: 12 }, (_, i) => i).filter((i) => 'ab'[i % 2] === tenant);
      expect(own).toEqual(
        asked.flatMap((i) =>
          Array.from({ length: 1 + (i % 3) }, (_, row) => `${tenant}-${i}-${row}`),
        ),
      );
    }
  });

  it('[7.4] [7.1] No tenant can fill the queue with one call after the other', async () => {
    const batcher = await busyBatcher({ maxRows: 10 });
    const refused = Array.from({ length: 8 }, () => {
      try {
        batcher.ask('a', { tenant: 'a' });
        return undefined;
      } catch (error) {
        return error;
      }
    });

    expect(refused.slice(0, 5)).toEqual(Array.from({ length: 5 }, () => undefined));
    expect(refused.slice(5).every((error) => error instanceof OverloadedError)).toBe(true);
    ['b', 'c', ''].forEach((tenant) => batcher.ask('b', { tenant }));
    await runAll(batcher);
    expect(batcher.depth).toBe(0);
  });

  it('[7.3] [7.4] The share of a tenant that has left goes to the others', async () => {
    const batcher = await busyBatcher({ batchSize: 2 });
    const gone = ['a', 'b'].map((tenant) => batcher.ask(tenant, { tenant, size: 4 }))[0]!;
    batcher.ask('c', { tenant: 'c', size: 2 });
    gone.leave();

    const ran = await runAll(batcher);

    expect(ran).toHaveLength(3);
    expect(sharesOf(ran, 3)).toEqual({ b: 4, c: 2 });
  });
});

/**
 * The number of rows of each tenant in the first batches. The names of tenants start with a letter.
 */
function sharesOf(ran: readonly string[], batches: number): Record<string, number> {
  const shares: Record<string, number> = {};
  for (const row of ran.slice(0, batches).flatMap((rows) => rows.split(' '))) {
    shares[row[0]!] = (shares[row[0]!] ?? 0) + 1;
  }
  return shares;
}

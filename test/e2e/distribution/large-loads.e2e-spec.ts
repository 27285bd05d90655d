import { spawn } from 'node:child_process';
import { availableParallelism } from 'node:os';
import { expect, it } from '@jest/globals';
import {
  type ClusterClient,
  type ClusterProcess,
  type FillingAnswer,
  type FillingRow,
  useClusterProcesses,
} from '../../fixtures/cluster/use-cluster-processes.js';
import { useSlowLinks } from '../../fixtures/cluster/slow-link.js';
import { describeWirings } from '../../fixtures/cluster/wirings.js';

const MB = 1_000_000;
/** Loads in full, and cores kept busy, take minutes: `CLUSTER_LOADS=whole npm run jest -- large-loads`. */
const isWhole = process.env['CLUSTER_LOADS'] === 'whole';
/** Not even a call that runs a second time is lost in it, nor does a limit of time end any. */
const serving = {
  name: 'm',
  as: 'filling',
  batchSize: 8,
  recovery: { idempotent: false },
} as const;
const distribution = { requestTimeout: 3_600_000, limits: { bytes: 256 * MB } };

/** Each call has its own answer, and its row ran once. */
async function expectAllAnswered(
  node: ClusterProcess,
  web: ClusterClient,
  rows: readonly FillingRow[],
): Promise<void> {
  const replies = await Promise.allSettled(
    rows.map((row) => web.servings.batchedRun<FillingRow, FillingAnswer>('m', row)),
  );
  const outcomes = replies.map((reply) =>
    reply.status === 'fulfilled'
      ? { id: reply.value.id, got: reply.value.got, bytes: reply.value.data.length }
      : reply.reason,
  );

  expect(outcomes).toEqual(rows.map(({ id, data, bytes }) => ({ id, got: data?.length, bytes })));
  expect(node.begun.toSorted()).toEqual(rows.map(({ id }) => id).toSorted());
}

const rowsOf = (count: number, row: Omit<FillingRow, 'id'>): readonly FillingRow[] =>
  Array.from({ length: count }, (_, i) => ({ id: `${i}`, ...row }));

describeWirings('Large loads', (wiring) => {
  const { node, client } = useClusterProcesses(wiring);

  async function pair(): Promise<readonly [ClusterProcess, ClusterClient]> {
    const owner = await node({ servings: [serving], distribution });
    const web = await client(distribution);
    await web.untilNodes('m', 1);
    return [owner, web];
  }

  it('[C1] 250 images of 600 kB at once are answered', async () => {
    const data = new Uint8Array(0.6 * MB);
    await expectAllAnswered(...(await pair()), rowsOf(250, { bytes: 8, data }));
  });

  it('[C1] Three calls of 60 MB at once are answered', async () => {
    const data = new Uint8Array(60 * MB);
    await expectAllAnswered(...(await pair()), rowsOf(3, { bytes: 8, data }));
  });

  it('[C1] Replies of 160 MB, in one and in many, arrive', async () => {
    const rows = [
      { id: 'one', bytes: 160 * MB },
      ...rowsOf(isWhole ? 256 : 32, { bytes: 0.625 * MB }),
    ];
    await expectAllAnswered(...(await pair()), rows);
  });

  it('[C2] Thousands of small calls at once are answered, also while the cores are busy', async () => {
    const busy = Array.from({ length: isWhole ? availableParallelism() : 0 }, () =>
      spawn(process.execPath, ['-e', 'for (;;);']),
    );
    try {
      await expectAllAnswered(...(await pair()), rowsOf(isWhole ? 10_000 : 2000, { bytes: 8 }));
    } finally {
      busy.forEach((each) => each.kill());
    }
  });
});

/** Megabytes per second, milliseconds of delay, and calls of 700 kB. */
const links: readonly (readonly [rate: number, delay: number, calls: number])[] = isWhole
  ? [1, 10, 100].flatMap((rate) =>
      // Each late piece holds a link of 200 ms for 2 s.
      [0, 10, 200].map(
        (delay) => [rate, delay, Math.min(15 * rate, delay < 200 ? 400 : 100)] as const,
      ),
    )
  : [
      [1, 10, 6],
      [10, 10, 40],
    ];

describeWirings('Slow links', (wiring) => {
  const slow = useSlowLinks();
  let near: number | undefined;
  const { node, client } = useClusterProcesses({
    options: (ports, port) =>
      near === undefined ? wiring.options(ports, port) : wiring.through(near),
  });

  it.each(links)(
    '[C2] Over %i MB/s with %i ms of delay, %i calls of 700 kB at once are answered, and the node stays',
    async (rate, delay, calls) => {
      near = undefined;
      const owner = await node({ servings: [serving], distribution });
      near = await slow(wiring.far(owner.places.port), { rate: rate * MB, delay, late: 100 });
      const web = await client(distribution);
      await web.untilNodes('m', 1);
      const left: string[] = [];
      web.cluster['members'].changes$.subscribe(({ type }) => type === 'left' && left.push(type));
      const data = new Uint8Array(0.7 * MB);

      await expectAllAnswered(owner, web, rowsOf(calls, { bytes: 8, data }));
      expect(left).toEqual([]);
    },
  );
});

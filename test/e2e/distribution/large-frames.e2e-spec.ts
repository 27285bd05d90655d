import { expect, it } from '@jest/globals';
import { InvalidOutputError, RequestTooLargeError } from 'nestjs-serving';
import { until } from '../../fixtures/async/awaited.js';
import { failureOf } from '../../fixtures/async/failure-of.js';
import {
  type FillingAnswer,
  type FillingRow,
  useClusterProcesses,
} from '../../fixtures/cluster/use-cluster-processes.js';
import { describeEach, nats } from '../../fixtures/cluster/wirings.js';

const MIB = 2 ** 20;
const servings = [{ name: 'm', as: 'filling', batchSize: 1 }] as const;
/** Far longer than the test may take, so that a prompt error has not waited for it. */
const patient = { requestTimeout: 600_000 };

describeEach(
  'Frames larger than a packet of a server that accepts 64 KiB',
  [nats('max_payload: 65536')],
  (wiring) => {
    const { node, client } = useClusterProcesses(wiring);

    it('[11] Large frames arrive whole in both directions, many at a time, and each at its own caller', async () => {
      // A limit at which the frames could not all be assembled at once.
      const distribution = { ...patient, limits: { bytes: 2 * MIB } };
      await node({ servings, distribution });
      const web = await client(distribution);
      await web.untilNodes('m', 1);
      const rows = Array.from({ length: 24 }, (_, i): FillingRow => ({
        id: `${i}`,
        bytes: MIB + i,
        data: new Uint8Array(MIB - i),
      }));

      const answers = await Promise.all(
        rows.map((row) => web.servings.batchedRun<FillingRow, FillingAnswer>('m', row)),
      );

      expect(answers.map(({ id, got }) => ({ id, got }))).toEqual(
        rows.map(({ id, data }) => ({ id, got: data!.length })),
      );
      expect(
        answers.filter(
          ({ data }, i) => data.length !== MIB + i || data.some((byte) => byte !== (MIB + i) % 251),
        ),
      ).toEqual([]);
    });

    it('[11] A frame beyond the limit fails its call at once, and no other', async () => {
      const distribution = { ...patient, limits: { bytes: MIB } };
      await node({ servings, distribution });
      const web = await client(distribution);
      await web.untilNodes('m', 1);
      const call = (row: FillingRow) =>
        web.servings.batchedRun<FillingRow, FillingAnswer>('m', row);
      const other = call({ id: 'other', bytes: MIB / 2 });

      const output = await failureOf(call({ id: 'output', bytes: 2 * MIB }));
      const input = await failureOf(call({ id: 'input', bytes: 1, data: new Uint8Array(2 * MIB) }));

      expect(output).toBeInstanceOf(InvalidOutputError);
      expect(output).toMatchObject({ message: expect.stringContaining('more than 1048576 bytes') });
      expect(input).toBeInstanceOf(RequestTooLargeError);
      expect(await other).toMatchObject({ id: 'other' });
    });

    it('[11] Packets become smaller when the restarted server accepts less', async () => {
      await node({ servings, distribution: patient });
      const web = await client(patient);
      await web.untilNodes('m', 1);
      const call = (id: string) =>
        web.servings.batchedRun<FillingRow, FillingAnswer>('m', {
          id,
          bytes: MIB / 4,
          data: new Uint8Array(MIB / 4),
        });
      expect(await call('before')).toMatchObject({ id: 'before', got: MIB / 4 });

      await wiring.broker().kill();
      await until(() => !web.cluster.selector.isOnline);
      await wiring.broker().start('max_payload: 8192');

      expect(await call('after')).toMatchObject({ id: 'after', got: MIB / 4 });
    });
  },
);

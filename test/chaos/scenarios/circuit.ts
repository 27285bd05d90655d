import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { squareCall } from '../client/calls.js';
import { squarers } from '../client/callers.js';
import { HttpClient } from '../client/http-client.js';
import type { Scenario } from '../scenario.js';

export const circuit: Scenario = {
  name: 'circuit',
  title: 'every batch ends its process, until that is mended',
  async play(stage) {
    const curse = join(stage.folder, 'curse');
    const squares = {
      recovery: { idempotent: true, restartDelay: 20, maxRestarts: 2 },
      warmUp: [{ id: 0 }],
      worker: { delay: 5, curse },
    };
    const app = await stage.start({ squares });
    const load = await stage.load(app, squarers(24));

    writeFileSync(curse, '');
    await app.until(({ partitions }) => partitions.every((state) => state === 'lost'));
    await load.settled();
    const { failures, lost, wrong } = await load.end();

    const client = new HttpClient(app.url, 1);
    const { path, content } = squareCall();
    const { status, headers } = await client.send('POST', path, content);
    const ready = await client.send('GET', '/health/ready');
    client.close();
    const seen = { status, code: headers['x-code'], 'retry-after': headers['retry-after'] };
    stage.check('calls fail at once', status === 503 && seen.code === 'SERVING_UNAVAILABLE', seen);
    stage.check('and say when to come back', Number(seen['retry-after']) > 0, seen);
    stage.check(
      'readiness says why',
      ready.status === 503 && ready.body.includes('Partition 0 has failed'),
      ready,
    );
    const codes = [...failures.keys()].toSorted();
    stage.check(
      'no call fails for another reason',
      codes.every((code) => code === 'SERVING_PARTITION_LOST' || code === 'SERVING_UNAVAILABLE'),
      Object.fromEntries(failures),
    );
    stage.check('no call is left without an answer', lost === 0, lost);
    stage.check('nobody gets the answer of somebody else', wrong === 0, wrong);

    rmSync(curse);
    if (stage.isPatient) {
      await app.until(({ partitions }) => partitions.includes('up'));
      const again = await stage.load(app, squarers(24));
      stage.checkUnharmed(await again.end());
    }
    stage.restarts = (await app.admin()).restarts;
  },
};

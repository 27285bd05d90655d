import { join } from 'node:path';
import type { Application } from '../client/application.js';
import { readers, squarers } from '../client/callers.js';
import { Diary } from '../client/diary.js';
import type { Load } from '../client/load.js';
import type { Scenario } from '../scenario.js';
import type { Stage } from '../stage.js';

const LOST = 'SERVING_PARTITION_LOST';

/** So many kills must be enough to hit a batch. */
const ENOUGH = 50;

/** A load on a model and on a file, and a killer. */
async function underLoad(stage: Stage, options: { readonly retries?: number }): Promise<{ app: Application; load: Load }> {
  const app = await stage.start({ digits: options, squares: { ...options, idempotent: true, worker: { delay: 5 } } });
  const load = await stage.load(app, [...(await readers(app, 16)), ...squarers(24)]);
  return { app, load };
}

export const kill: Scenario = {
  name: 'kill',
  title: 'kill -9 of partition processes',
  async play(stage) {
    const { app, load } = await underLoad(stage, {});
    for await (const _ of stage.rounds(load)) {
      stage.signalOne(app, 'SIGKILL');
    }
    stage.checkUnharmed(await load.end());
    stage.restarts = (await app.recovered()).restarts;
    stage.check('partitions are started again', stage.restarts > 0, stage.restarts);
  },
};

export const killWithoutRetries: Scenario = {
  name: 'kill-no-retries',
  title: 'the same with retries: 0 (must fail)',
  async play(stage) {
    const { app, load } = await underLoad(stage, { retries: 0 });
    for (let kills = 0; kills < ENOUGH && load.tally.failed.length === 0; kills++) {
      stage.signalOne(app, 'SIGKILL');
      await load.settled();
    }
    const { failures, lost, wrong } = await load.end();
    stage.restarts = (await app.recovered()).restarts;
    stage.check(`calls fail, all with ${LOST}`, [...failures.keys()].join() === LOST, Object.fromEntries(failures));
    stage.check('no call is left without an answer', lost === 0, lost);
    stage.check('nobody gets the answer of somebody else', wrong === 0, wrong);
  },
};

export const killOnce: Scenario = {
  name: 'kill-once',
  title: 'the same with idempotent: false',
  async play(stage) {
    const diary = new Diary(join(stage.folder, 'diary'));
    const batchSize = 8;
    const app = await stage.start({ squares: { batchSize, idempotent: false, worker: { delay: 5, diary: diary.path } } });
    const load = await stage.load(app, squarers(40));
    let kills = 0;
    for await (const _ of stage.rounds(load)) {
      stage.signalOne(app, 'SIGKILL');
      kills++;
    }
    for (; kills < ENOUGH && load.tally.failed.length === 0; kills++) {
      stage.signalOne(app, 'SIGKILL');
      await load.settled();
    }
    const { failures, failed, lost, wrong } = await load.end();
    stage.restarts = (await app.recovered()).restarts;

    const batches = diary.lines().map((line) => line.split(' ').map(Number));
    const begun = batches.flat();
    const hurt = new Set(failed.map(({ content }) => (content as { id: number }).id));
    const torn = batches.filter((rows) => rows.some((id) => hurt.has(id)) && !rows.every((id) => hurt.has(id)));
    stage.check('no row runs twice', new Set(begun).size === begun.length, begun.length - new Set(begun).size);
    stage.check(`calls fail, all with ${LOST}`, [...failures.keys()].join() === LOST, Object.fromEntries(failures));
    stage.check('a batch fails whole or not at all', torn.length === 0, torn);
    stage.check('a kill costs one batch', hurt.size <= kills * batchSize, { hurt: hurt.size, kills });
    stage.check('no call is left without an answer', lost === 0, lost);
    stage.check('nobody gets the answer of somebody else', wrong === 0, wrong);
  },
};

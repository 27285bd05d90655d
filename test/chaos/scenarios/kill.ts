import { join } from 'node:path';
import type { Application } from '../client/application.js';
import { readers, squarers } from '../client/callers.js';
import { Diary } from '../client/diary.js';
import type { Load } from '../client/load.js';
import type { Scenario } from '../scenario.js';
import type { Stage } from '../stage.js';

const LOST = 'SERVING_PARTITION_LOST';

/** So many kills must be enough to hit a few batches. */
const ENOUGH = 50;

/** Milliseconds of a batch, so that a process has one most of the time. */
const DELAY = 20;
const BATCH_SIZE = 8;

/**
 * More than the kills of a scenario: those that hit a process which is only starting count as
 * failures in a row, and would open the circuit.
 */
const maxRestarts = 1000;

/** A load on a model and on a file, and a killer. */
async function underLoad(
  stage: Stage,
  options: { readonly retries?: number },
): Promise<{ app: Application; load: Load }> {
  const recovery = { ...options, maxRestarts, idempotent: true };
  const squares = { recovery, worker: { delay: DELAY } };
  const app = await stage.start({ digits: { recovery }, squares });
  const load = await stage.load(app, [...(await readers(app, 16)), ...squarers(24)]);
  return { app, load };
}

export const kill: Scenario = {
  name: 'kill',
  title: 'kill -9 of partition processes',
  async play(stage) {
    const { app, load } = await underLoad(stage, {});
    for await (const _ of stage.rounds(app, load)) {
      stage.signalOne(app, 'SIGKILL');
    }
    for (let kills = 0; kills < ENOUGH && (await app.admin()).retried === 0; kills++) {
      stage.signalOne(app, 'SIGKILL');
      await stage.calm(app, load);
    }
    stage.checkUnharmed(await load.end());
    const { restarts, retried } = await app.recovered();
    stage.restarts = restarts;
    stage.check('partitions are started again', restarts > 0, restarts);
    stage.check('rows that were lost run again', retried > 0, retried);
  },
};

export const killWithoutRetries: Scenario = {
  name: 'kill-no-retries',
  title: 'the same with retries: 0 (must fail)',
  async play(stage) {
    const { app, load } = await underLoad(stage, { retries: 0 });
    for (let kills = 0; kills < ENOUGH && load.tally.failed.length === 0; kills++) {
      stage.signalOne(app, 'SIGKILL');
      await stage.calm(app, load);
    }
    const { failures, lost, wrong } = await load.end();
    stage.restarts = (await app.recovered()).restarts;
    stage.check(
      `calls fail, all with ${LOST}`,
      [...failures.keys()].join() === LOST,
      Object.fromEntries(failures),
    );
    stage.check('no call is left without an answer', lost === 0, lost);
    stage.check('nobody gets the answer of somebody else', wrong === 0, wrong);
  },
};

export const killOnce: Scenario = {
  name: 'kill-once',
  title: 'the same with idempotent: false',
  async play(stage) {
    const diary = new Diary(join(stage.folder, 'diary'));
    const worker = { delay: DELAY, diary: diary.path };
    const app = await stage.start({
      squares: { batchSize: BATCH_SIZE, recovery: { maxRestarts, idempotent: false }, worker },
    });
    const load = await stage.load(app, squarers(40));
    let kills = 0;
    for await (const _ of stage.rounds(app, load)) {
      stage.signalOne(app, 'SIGKILL');
      kills++;
    }
    for (; kills < ENOUGH && load.tally.failed.length <= 2 * BATCH_SIZE; kills++) {
      stage.signalOne(app, 'SIGKILL');
      await stage.calm(app, load);
    }
    const { failures, failed, lost, wrong } = await load.end();
    stage.restarts = (await app.recovered()).restarts;

    const batches = diary.lines().map((line) => line.split(' ').map(Number));
    const begun = batches.flat();
    const hurt = failed.map(({ content }) => (content as { id: number }).id);
    const torn = batches.filter(
      (rows) => rows.some((id) => hurt.includes(id)) && !rows.every((id) => hurt.includes(id)),
    );
    const notBegun = hurt.filter((id) => !begun.includes(id));
    stage.check(
      'no row runs twice',
      new Set(begun).size === begun.length,
      begun.length - new Set(begun).size,
    );
    stage.check(
      `calls fail, all with ${LOST}`,
      [...failures.keys()].join() === LOST,
      Object.fromEntries(failures),
    );
    stage.check('a batch fails whole or not at all', torn.length === 0, torn);
    // The one that runs, and one that has run whose output is still on its way out of the process.
    stage.check('a kill costs no more than two batches', hurt.length <= 2 * kills * BATCH_SIZE, {
      hurt,
      kills,
    });
    // One may have been killed before it could write down that it begins.
    stage.check('what was only handed ahead is answered', notBegun.length <= BATCH_SIZE, notBegun);
    stage.check('no call is left without an answer', lost === 0, lost);
    stage.check('nobody gets the answer of somebody else', wrong === 0, wrong);
  },
};

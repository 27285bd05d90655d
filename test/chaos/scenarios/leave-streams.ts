import { join } from 'node:path';
import type { Application } from '../client/application.js';
import { squarers } from '../client/callers.js';
import { Diary } from '../client/diary.js';
import { isOwn, type StreamPath, texts } from '../client/reader.js';
import type { Scenario } from '../scenario.js';
import type { LettersRow } from '../server/options.js';

const PATHS: readonly StreamPath[] = ['events', 'letters'];
const STEPS = 300;

export const leaveStreams: Scenario = {
  name: 'leave-streams',
  title: 'clients that leave in the middle of a stream',
  async play(stage) {
    const diary = new Diary(join(stage.folder, 'diary'));
    const app = await stage.start({
      squares: {},
      letters: { batchSize: 8, batchTimeout: 5, worker: { diary: diary.path } },
    });
    const load = await stage.load(app, squarers(8));
    let id = 0;
    const stayed: number[] = [];
    for await (const _ of stage.rounds(app, load, 0.1)) {
      const staying = PATHS.flatMap((path) =>
        [1, 2].map(() => readAll(app, path, { id: id++, steps: STEPS, length: 20 })),
      );
      const leaving = PATHS.flatMap((path) =>
        [1, 2, 3].map(() => readSome(app, path, { id: id++, length: 20 })),
      );
      stayed.push(...(await Promise.all(staying)));
      await Promise.all(leaving);
      await diary.until((words) => count(words, 'begins') === count(words, 'ends'));
    }
    stage.checkUnharmed(await load.end());
    stage.check(
      'who stays gets all of it, in order',
      stayed.length > 0 && stayed.every((steps) => steps === STEPS),
      stayed,
    );
    const begun = count(diary.words(), 'begins');
    stage.check('generators that nobody reads have ended', begun > 0, begun);
  },
};

/** How many texts came, each of them the right one. */
async function readAll(app: Application, path: StreamPath, row: LettersRow): Promise<number> {
  let step = 0;
  for await (const text of texts(app, path, row)) {
    if (!isOwn(text, step, row)) {
      return NaN;
    }
    step++;
  }
  return step;
}

async function readSome(app: Application, path: StreamPath, row: LettersRow): Promise<void> {
  let step = 0;
  for await (const text of texts(app, path, row)) {
    if (!isOwn(text, step++, row) || step === 3) {
      return;
    }
  }
}

function count(words: readonly string[], word: string): number {
  return words.filter((each) => each === word).length;
}

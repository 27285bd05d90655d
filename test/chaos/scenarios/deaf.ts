import { join } from 'node:path';
import type { Application } from '../client/application.js';
import { squarers } from '../client/callers.js';
import { Diary } from '../client/diary.js';
import { isOwn, type StreamPath, texts } from '../client/reader.js';
import type { Scenario } from '../scenario.js';
import type { LettersRow } from '../server/options.js';

const PATHS: readonly StreamPath[] = ['events', 'letters'];

/**
 * What two streams that nobody reads may keep the application from freeing, in bytes: 1024 steps of
 * 8 KB each, a few times on their way.
 */
const BOUND = 128e6;

export const deaf: Scenario = {
  name: 'deaf',
  title: 'clients that read no more of their streams',
  async play(stage) {
    const diary = new Diary(join(stage.folder, 'diary'));
    const letters = { batchSize: 1, shutdown: { timeout: 1000 }, worker: { diary: diary.path } };
    const app = await stage.start({ squares: {}, letters }, { SHUTDOWN: '1000' });
    const load = await stage.load(app, squarers(8));
    const { memory: before } = await app.admin();
    const ended = (generators: number) =>
      diary.until((words) => words.filter((word) => word === 'ends').length === generators);
    const kept: number[] = [];
    const read: number[] = [];
    for await (const round of stage.rounds(app, load, 0.1)) {
      const streams = await Promise.all(
        PATHS.map((path, i) => Deaf.open(app, path, { id: 2 * round + i, length: 8192 })),
      );
      await ended(streams.length * (round + 1));
      kept.push((await app.admin()).memory - before);
      read.push(...(await Promise.all(streams.map((stream) => stream.rest()))));
    }
    const { failures } = await app.admin();
    stage.checkUnharmed(await load.end());
    stage.check(
      'the generators end, for a reader who does not keep up',
      failures['SERVING_SLOW_CONSUMER'] === kept.length,
      failures,
    );
    stage.check(
      'what waits for the readers is bounded',
      kept.length > 0 && Math.max(...kept) < BOUND,
      kept,
    );
    stage.check(
      'they can read what is left, in order, up to where they were dropped',
      read.every((steps) => steps > 1),
      read,
    );

    // More than the system keeps of what is sent, and less than the serving does.
    const last = await Deaf.open(app, 'letters', { id: 0, steps: 900, length: 8192 });
    await ended(PATHS.length * kept.length + 1);
    app.kill('SIGTERM');
    const { code, signal } = await app.ended;
    stage.check('they do not keep the application from ending', code === 0, { code, signal });
    await last.rest();
  },
};

/** A client who reads the first of his texts, and no more. */
class Deaf {
  private constructor(
    private readonly others: AsyncGenerator<string>,
    private readonly row: LettersRow,
  ) {}

  static async open(app: Application, path: StreamPath, row: LettersRow): Promise<Deaf> {
    const all = texts(app, path, row);
    await all.next();
    return new Deaf(all, row);
  }

  /**
   * Reads at last what there is, until the connection breaks; tells how much it was, if it was
   * right.
   */
  async rest(): Promise<number> {
    let step = 1;
    try {
      for await (const text of this.others) {
        if (!isOwn(text, step++, this.row)) {
          return NaN;
        }
      }
      return NaN;
    } catch {
      return step;
    }
  }
}

import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type Call, squareCall } from '../client/calls.js';
import { readers } from '../client/callers.js';
import { Diary } from '../client/diary.js';
import { HttpClient } from '../client/http-client.js';
import type { Scenario } from '../scenario.js';

/**
 * Calls that both processes are busy with, or have at hand, in batches of 8; and some more, which
 * wait.
 */
const HELD = 40;
const LEAVING = 20;

export const leave: Scenario = {
  name: 'leave',
  title: 'clients that leave, waiting or running',
  async play(stage) {
    const gate = join(stage.folder, 'gate');
    const diary = new Diary(join(stage.folder, 'diary'));
    const app = await stage.start({
      digits: {},
      squares: { batchSize: 8, worker: { diary: diary.path, gate } },
    });
    const load = await stage.load(app, await readers(app, 16));
    const client = new HttpClient(app.url, HELD + LEAVING + 1);
    const left: number[] = [];
    const stayed: boolean[] = [];
    let depth = 0;

    for await (const _ of stage.rounds(app, load, 0.1)) {
      writeFileSync(gate, '');
      const {
        calls: { squares: before = 0 },
        failures: { SERVING_CANCELLED: cancelled = 0 },
      } = await app.admin();
      /** Asked once more, since what has come leaves for its partition at the end of the turn. */
      const came = async (count: number) => {
        await app.until(({ calls }) => calls['squares'] === before + count);
        return app.admin();
      };
      const leaving = Array.from({ length: 1 + LEAVING }, () => new AbortController());
      const first = squareCall({ held: true });
      const running = send(client, first, leaving[0]!.signal);
      await diary.until((words) => words.includes(`${first.id}`));
      const staying = Array.from({ length: HELD }, () => send(client, squareCall({ held: true })));
      const {
        queued: { squares: waiting },
      } = await came(1 + HELD);
      const calls = Array.from({ length: LEAVING }, () => squareCall());
      const waitingToo = calls.map((call, i) => send(client, call, leaving[1 + i]!.signal));
      await came(1 + HELD + LEAVING);

      leaving.forEach((each) => each.abort());

      await app.until(({ failures }) => failures['SERVING_CANCELLED'] === cancelled + 1 + LEAVING);
      depth = Math.max(depth, Math.abs((await app.admin()).queued['squares']! - waiting!));
      rmSync(gate);
      stayed.push(...(await Promise.all(staying)));
      await Promise.all([running, ...waitingToo]);
      left.push(...calls.map(({ id }) => id));
    }

    client.close();
    stage.checkUnharmed(await load.end());
    stage.check(
      'who stays is answered',
      stayed.length > 0 && stayed.every(Boolean),
      stayed.filter((isAnswered) => !isAnswered).length,
    );
    stage.check('those who leave give up their places', depth === 0, depth);
    const ran = new Set(diary.words().map(Number));
    stage.check(
      'rows that wait for nobody never run',
      left.length > 0 && !left.some((id) => ran.has(id)),
      left.filter((id) => ran.has(id)),
    );
    const { queued, failures } = await app.admin();
    stage.check(
      'nothing waits at the end',
      Object.values(queued).every((rows) => rows === 0),
      queued,
    );
    stage.check(
      'nothing else fails',
      Object.keys(failures).join() === 'SERVING_CANCELLED',
      failures,
    );
  },
};

/** Whether the answer came, and was the caller's own. */
async function send(client: HttpClient, call: Call, signal?: AbortSignal): Promise<boolean> {
  try {
    const { body } = await client.send('POST', call.path, call.content, signal);
    return call.isOwn(JSON.parse(body));
  } catch {
    return false;
  }
}

import { squarers } from '../client/callers.js';
import type { Scenario } from '../scenario.js';
import { signalTo } from '../signals.js';

export const stop: Scenario = {
  name: 'stop',
  title: 'SIGSTOP, with runTimeout: 1000',
  async play(stage) {
    const app = await stage.start({
      squares: { recovery: { idempotent: true, runTimeout: 1000 }, worker: { delay: 5 } },
    });
    const load = await stage.load(app, squarers(40));
    for await (const _ of stage.rounds(app, load, 0.2)) {
      const { restarts } = await app.recovered();
      stage.signalOne(app, 'SIGSTOP');
      await app.until((admin) => admin.restarts > restarts);
    }
    stage.checkUnharmed(await load.end());
    stage.restarts = (await app.recovered()).restarts;
    stage.check('what hangs is started again', stage.restarts > 0, stage.restarts);
  },
};

export const pause: Scenario = {
  name: 'pause',
  title: 'SIGSTOP and SIGCONT, without runTimeout',
  async play(stage) {
    const app = await stage.start({ squares: { batchSize: 8, worker: { delay: 5 } } });
    // The batch that is stopped and the one handed ahead to it hold 16 of them.
    const load = await stage.load(app, squarers(40));
    for await (const _ of stage.rounds(app, load, 0.2)) {
      const pid = stage.signalOne(app, 'SIGSTOP');
      await load.answered(200);
      if (pid !== undefined) {
        signalTo(pid, 'SIGCONT');
      }
      await load.settled();
    }
    stage.checkUnharmed(await load.end());
    stage.restarts = (await app.recovered()).restarts;
    stage.check('nothing is started again', stage.restarts === 0, stage.restarts);
  },
};

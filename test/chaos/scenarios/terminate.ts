import { readers, squarers } from '../client/callers.js';
import type { Scenario } from '../scenario.js';
import type { ServerOptions } from '../server/options.js';
import { gone, signalTo } from '../signals.js';

interface Way extends Pick<ServerOptions, 'platform' | 'ending'> {
  /** All partition processes are killed a moment before. */
  readonly isCrippled?: boolean;
}

/** An application that is told to end while its clients go on calling. */
function terminate(name: string, title: string, { isCrippled = false, ...ways }: Way): Scenario {
  return {
    name,
    title,
    async play(stage) {
      const app = await stage.start({ ...ways, digits: {}, squares: { idempotent: true, worker: { delay: 5 } } });
      const callers = [...(await readers(app, 16)), ...squarers(24)];
      const { accepted: before } = await app.admin();
      const load = await stage.load(app, callers);
      const processes = app.processes();

      if (isCrippled) {
        processes.forEach((pid) => signalTo(pid, 'SIGKILL'));
      }
      app.kill('SIGTERM');

      const tally = await load.ended();
      const { code, signal, lastWords } = await app.ended;
      const accepted = (lastWords?.accepted ?? NaN) - before;
      const { answers, failures, wrong } = tally;
      stage.check('no call fails', failures.size === 0, Object.fromEntries(failures));
      stage.check('every call that was accepted is answered', answers === accepted, { answers, accepted });
      stage.check('nobody gets the answer of somebody else', wrong === 0, wrong);
      stage.check('the application exits with 0', code === 0, { code, signal });
      await gone(processes);
      stage.check('no process is left', processes.length === 4, processes);
    },
  };
}

export const terminateExpress = terminate('term', 'SIGTERM: shutdown hooks, Express', { platform: 'express', ending: 'exit' });

export const terminateFastify = terminate('term-fastify', 'SIGTERM: app.close(), Fastify', {
  platform: 'fastify',
  ending: 'close',
});

export const terminateCrippled = terminate('term-kill', 'SIGTERM, after kill -9 of all partitions', { isCrippled: true });

export const killApplication: Scenario = {
  name: 'kill-app',
  title: 'kill -9 of the application',
  async play(stage) {
    const app = await stage.start({ digits: {}, squares: { worker: { delay: 5 } } });
    const load = await stage.load(app, [...(await readers(app, 16)), ...squarers(24)]);
    const processes = app.processes();

    app.kill('SIGKILL');

    const { failures, wrong } = await load.ended();
    const { signal } = await app.ended;
    stage.check('it is dead', signal === 'SIGKILL', signal);
    stage.check('no call fails that is answered', failures.size === 0, Object.fromEntries(failures));
    stage.check('nobody gets the answer of somebody else', wrong === 0, wrong);
    await gone(processes);
    stage.check('its processes end by themselves', processes.length === 4, processes);
  },
};

import type { Application } from '../client/application.js';
import { readers, squarers } from '../client/callers.js';
import type { Load } from '../client/load.js';
import type { Scenario } from '../scenario.js';
import type { ServerOptions } from '../server/options.js';
import { gone, signalTo } from '../signals.js';
import type { Stage } from '../stage.js';

const digits = {};
const squares = { recovery: { idempotent: true }, worker: { delay: 5 } };

interface UnderLoad {
  readonly app: Application;
  readonly load: Load;
  /** Requests of calls that it had accepted before. */
  readonly before: number;
  readonly processes: readonly number[];
}

async function underLoad(stage: Stage, options: ServerOptions): Promise<UnderLoad> {
  const app = await stage.start(options);
  const callers = [
    ...(options.digits ? await readers(app, 16) : []),
    ...(options.squares ? squarers(24) : []),
  ];
  const { accepted: before, partitions } = await app.admin();
  const load = await stage.load(app, callers);
  const processes = app.processes();
  stage.check('each partition has a process', processes.length === partitions.length, processes);
  return { app, load, before, processes };
}

/**
 * An application that is told to end while its clients go on calling; `isCrippled`: all partition
 * processes are killed a moment before.
 */
function terminate(
  name: string,
  title: string,
  options: ServerOptions,
  isCrippled = false,
): Scenario {
  return {
    name,
    title,
    async play(stage) {
      const { app, load, before, processes } = await underLoad(stage, options);

      if (isCrippled) {
        processes.forEach((pid) => signalTo(pid, 'SIGKILL'));
      }
      app.kill('SIGTERM');

      const { answers, failures, wrong } = await load.ended();
      const { code, signal, lastWords } = await app.ended;
      const accepted = (lastWords?.accepted ?? NaN) - before;
      stage.check('no call fails', failures.size === 0, Object.fromEntries(failures));
      stage.check('every call that was accepted is answered', answers === accepted, {
        answers,
        accepted,
      });
      stage.check('nobody gets the answer of somebody else', wrong === 0, wrong);
      stage.check('the application exits with 0', code === 0, { code, signal });
      await gone(processes);
    },
  };
}

const onExpress = { platform: 'express', ending: 'exit' } as const;
const onFastify = { platform: 'fastify', ending: 'close' } as const;

export const terminateExpress = terminate('term', 'SIGTERM: shutdown hooks, Express', {
  ...onExpress,
  digits,
  squares,
});
export const terminateFastify = terminate('term-fastify', 'SIGTERM: app.close(), Fastify', {
  ...onFastify,
  digits,
});
export const terminateCrippled = terminate(
  'term-kill',
  'SIGTERM, after kill -9 of all partitions',
  { ...onExpress, squares },
  true,
);

export const killApplication: Scenario = {
  name: 'kill-app',
  title: 'kill -9 of the application',
  async play(stage) {
    const { app, load, processes } = await underLoad(stage, { squares });

    app.kill('SIGKILL');

    const { failures, wrong } = await load.ended();
    const { signal } = await app.ended;
    stage.check('it is dead', signal === 'SIGKILL', signal);
    stage.check(
      'no call fails that is answered',
      failures.size === 0,
      Object.fromEntries(failures),
    );
    stage.check('nobody gets the answer of somebody else', wrong === 0, wrong);
    await gone(processes);
  },
};

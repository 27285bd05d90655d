import { availableParallelism } from 'node:os';
import { Processes } from './processes.js';

// #region start
// One core is left for the model.
const processes = new Processes(Number(process.env['WEB_PROCESSES'] ?? availableParallelism() - 1));

process.once('SIGTERM', () => void processes.stop());
// #endregion

// For the test: the ids of the processes.
process.on('message', () => {
  const [webs, models] = [processes.webs, processes.models].map((children) =>
    [...children].map(({ pid }) => pid),
  );
  process.send?.({ webs, models });
});
process.once('SIGTERM', () => process.channel?.unref());

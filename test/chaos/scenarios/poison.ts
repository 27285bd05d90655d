import { squareCall } from '../client/calls.js';
import { squarers } from '../client/callers.js';
import { HttpClient } from '../client/http-client.js';
import type { Scenario } from '../scenario.js';
import type { SquareRow } from '../server/options.js';

/** One row whose batch does not survive it, among others that are harmless. */
function poison(
  name: string,
  title: string,
  fault: NonNullable<SquareRow['fault']>,
  batchSize: number,
  share: number,
): Scenario {
  return {
    name,
    title,
    async play(stage) {
      // Whole twice, then in halves until it is alone.
      const retries = 1 + Math.log2(batchSize);
      const squares = { recovery: { idempotent: true, retries }, batchSize, worker: { delay: 5 } };
      const app = await stage.start({ squares }, { NODE_OPTIONS: '--max-old-space-size=80' });
      const load = await stage.load(app, squarers(24));
      const client = new HttpClient(app.url, 1);
      const answers: string[] = [];
      for await (const _ of stage.rounds(app, load, share)) {
        const { path, content } = squareCall({ fault });
        const { status, headers } = await client.send('POST', path, content);
        answers.push(`${status} ${String(headers['x-code'])}`);
      }
      client.close();
      stage.checkUnharmed(await load.end());
      stage.restarts = (await app.recovered()).restarts;
      stage.check(
        'who brings it is told so',
        answers.length > 0 && answers.every((answer) => answer === '503 SERVING_PARTITION_LOST'),
        answers,
      );
    },
  };
}

export const aborts = poison('abort', 'a row that aborts its process', 'aborts', 8, 0.1);
export const fillsMemory = poison(
  'memory',
  'a row that fills the memory of its process',
  'fills its memory',
  2,
  0.05,
);

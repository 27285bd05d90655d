import { parseArgs } from 'node:util';
import { batchedApplication, unbatchedApplication } from './application.js';
import { measure } from './measure.js';
import { handwrittenDigits, semanticSearch } from './samples.js';
import { tableOf } from './table.js';

const { values: options } = parseArgs({ options: { keep: { type: 'boolean', default: false } } });

const sample = await semanticSearch().catch((error: Error) => {
  console.log(`${error.message}\nThe demo takes the digits instead, which need no network.\n`);
  return handwrittenDigits();
});
const load = { requests: sample.requests, amount: 1000, connections: 200 };
console.log(
  `${sample.title}: ${load.amount} requests, ${load.connections} at a time, from another process.\n`,
);

const unbatched = await unbatchedApplication(sample);
const oneByOne = await measure(unbatched, load);
await unbatched.close();

const app = await batchedApplication(sample);
const batched = await measure(app, load);

console.log(`${tableOf({ batched, 'one by one': oneByOne })}\n\n${sample.remark}`);

if (options.keep) {
  console.log(`\nTry it at ${await app.getUrl()} (Ctrl+C ends it)`);
} else {
  await app.close();
}

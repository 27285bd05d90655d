import { createServing, type Tensor } from 'nestjs-serving';
import { proportionalSetSize } from '../harness/memory-of.js';
import { mlp } from '../models/mlp.js';
import { session } from '../models/model.js';
import { randomRows } from '../models/random.js';

/** Starts a serving, and prints its milliseconds and megabytes above those of the process before. */
const [isolation, partitions] = process.argv.slice(2) as ['native' | 'thread', string];

const megabytes = (): number =>
  process.platform === 'linux' ? proportionalSetSize(process.pid) : process.memoryUsage.rss() / 1e6;

const before = megabytes();
const begin = performance.now();
const serving = createServing({
  name: 'mlp',
  batchSize: 1,
  partitions: Number(partitions),
  model: { file: mlp.path, session, isolation },
});
await serving.start();
const time = performance.now() - begin;
const row: Tensor = randomRows(1, mlp.rowShape);
await Promise.all(Array.from({ length: 50 }, () => serving.batchedRun(row)));
console.log(JSON.stringify({ time, memory: megabytes() - before }));
process.exit();

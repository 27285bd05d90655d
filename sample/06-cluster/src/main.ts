import { Cluster } from './cluster.js';
import { handwritten } from './handwritten.js';
import { load, type Outcome } from './load.js';

const cluster = await Cluster.start();
const digits = await handwritten();

console.log(`Two model nodes and a web node at ${cluster.url}, over ${cluster.transport}.\n`);
report('600 digits', await load(cluster.url, digits, 600));

// One of the model nodes is killed under load, as by a power cut.
const underLoad = load(
  cluster.url,
  digits,
  3000,
  (answered) => answered === 1000 && cluster.kill('one'),
);
report('3000 digits, while node one is killed', await underLoad);
report('600 digits more', await load(cluster.url, digits, 600));

await cluster.stop();

function report(title: string, { answers, right, failures }: Outcome): void {
  const byNode = [...answers]
    .toSorted(([one], [other]) => one.localeCompare(other))
    .map(([node, count]) => `${node} ${count}`);
  console.log(`${title}: ${byNode.join(', ')}; ${failures} failed, ${right} read right`);
}

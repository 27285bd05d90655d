import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { numberText } from '../harness/report.js';
import { digits } from '../models/digits.js';
import { mlp } from '../models/mlp.js';
import type { BenchmarkModel } from '../models/model.js';
import { folder, type Peer, peers } from './peers.js';
import { questionsOf } from './questions.js';
import { Server } from './server.js';
import { wrk } from './wrk.js';

const { values: options } = parseArgs({
  options: {
    only: { type: 'string', default: '' },
    models: { type: 'string', default: 'mlp,digits' },
    connections: { type: 'string', default: '1,32,128' },
    seconds: { type: 'string', default: '6' },
  },
});
const seconds = Number(options.seconds);
const connections = options.connections.split(',').map(Number);
const chosen = peers.filter(({ name }) =>
  options.only.split(',').some((part) => name.toLowerCase().includes(part.toLowerCase())),
);

const columns = ['req/s', 'p50 ms', 'p99 ms', 'CPU µs/req'];
const lines: string[] = [];
let nextPort = 18_200;
for (const model of [mlp, digits].filter(({ name }) =>
  options.models.includes(name.split(' ')[0]!),
)) {
  const loads = connections.flatMap((count) => columns.map((column) => `${count}: ${column}`));
  lines.push('', `**${model.name}**`, '');
  lines.push(`| server | ${loads.join(' | ')} | PSS MB | failed | wrong |`);
  lines.push(`| --- |${' ---: |'.repeat(loads.length + 3)}`);
  for (const peer of chosen) {
    const cells = await measure(peer, model, nextPort++).catch(({ message }: Error) => [message]);
    lines.push(`| ${[peer.name, ...cells].join(' | ')} |`);
    console.error(lines.at(-1));
  }
}
const table = `${lines.join('\n').trim()}\n`;
writeFileSync(join(folder, 'peers.md'), table);
console.log(`\n${table}\n${join(folder, 'peers.md')}`);

async function measure(peer: Peer, model: BenchmarkModel, port: number): Promise<string[]> {
  const questions = await questionsOf(model, peer);
  const server = new Server(peer, model.path, port);
  try {
    await server.answers(questions);
    let wrong = await server.wrong(questions);
    let failures = 0;
    const cells: string[] = [];
    for (const count of connections) {
      await wrk(port, questions.file, count, Math.ceil(seconds / 2));
      const before = server.cpu();
      const { answers, failed, p50, p99, ...load } = await wrk(
        port,
        questions.file,
        count,
        seconds,
      );
      const cpu = (server.cpu() - before) / answers;
      cells.push(...[answers / load.seconds, p50, p99].map(numberText));
      // Less than nothing where a process has ended meanwhile.
      cells.push(cpu < 0 ? '-' : numberText(cpu));
      failures += failed;
    }
    const memory = server.memory();
    wrong += await server.wrong(questions);
    return [...cells, numberText(memory), `${failures}`, `${wrong}`];
  } finally {
    await server.stop();
  }
}

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { numberText } from '../harness/report.js';
import { summarize } from '../harness/statistics.js';
import { digits } from '../models/digits.js';
import { mlp } from '../models/mlp.js';
import { generationTable } from './generation.js';
import { embedders, folder, miniLm, type Peer, peers } from './peers.js';
import { type Questions, rowQuestions } from './questions.js';
import { Server } from './server.js';
import { textQuestions } from './texts.js';
import { wrk } from './wrk.js';

const { values: options } = parseArgs({
  options: {
    only: { type: 'string', default: '' },
    models: { type: 'string', default: 'mlp,digits,embeddings,generation' },
    connections: { type: 'string', default: '1,32,128' },
    seconds: { type: 'string' },
    rounds: { type: 'string', default: '1' },
    quick: { type: 'boolean', default: false },
  },
});
const connections = options.connections.split(',').map(Number);

/** What the servers of a table are asked, and for how long. */
interface Workload {
  readonly name: string;
  readonly model: string;
  readonly peers: readonly Peer[];
  readonly seconds: number;
  /** Of the CPU time of a request: its name, and how many microseconds it has. */
  readonly unit: readonly [name: string, microseconds: number];
  questionsOf(peer: Peer): Promise<Questions>;
}

const workloads: readonly Workload[] = [
  ...[mlp, digits].map((model): Workload => ({
    name: model.name,
    model: model.path,
    peers,
    seconds: 6,
    unit: ['µs', 1],
    questionsOf: (peer) => rowQuestions(model, peer),
  })),
  {
    name: 'embeddings of texts',
    model: miniLm,
    peers: embedders,
    // With 128 connections a request takes seconds.
    seconds: 20,
    unit: ['ms', 1000],
    questionsOf: () => textQuestions(miniLm),
  },
];

const lines: string[] = [];
let nextPort = 18_200;
for (const workload of workloads.filter(({ name }) =>
  options.models.includes(name.split(' ')[0]!),
)) {
  const chosen = workload.peers.filter(isChosen);
  if (chosen.length === 0) {
    continue;
  }
  const columns = ['req/s', 'p50 ms', 'p99 ms', `CPU ${workload.unit[0]}/req`];
  const loads = connections.flatMap((count) => columns.map((column) => `${count}: ${column}`));
  lines.push('', `**${workload.name}**`, '');
  lines.push(`| server | ${loads.join(' | ')} | PSS MB | failed | wrong |`);
  lines.push(`| --- |${' ---: |'.repeat(loads.length + 3)}`);
  const rounds = chosen.map((): number[][] => []);
  for (let round = 0; round < Number(options.rounds); round++) {
    for (const [at, peer] of chosen.entries()) {
      const row = await measure(peer, workload, nextPort++).catch(({ message }: Error) => {
        console.error(`${peer.name}: ${message}`);
      });
      rounds[at]!.push(...(row ? [row] : []));
    }
  }
  for (const [at, { name }] of chosen.entries()) {
    lines.push(`| ${[name, ...cellsOf(rounds[at]!)].join(' | ')} |`);
  }
}
if (options.models.includes('generation')) {
  const rows = await generationTable(isChosen, options.quick ? 1 : 3);
  lines.push('', '**generation of answers**', '', ...rows);
}
const table = `${lines.join('\n').trim()}\n`;
writeFileSync(join(folder, 'peers.md'), table);
console.log(`\n${table}\n${join(folder, 'peers.md')}`);

function isChosen({ name }: Pick<Peer, 'name'>): boolean {
  return options.only.split(',').some((part) => name.toLowerCase().includes(part.toLowerCase()));
}

/** The medians of the rounds, but all requests that failed or had a wrong answer. */
function cellsOf(rounds: readonly (readonly number[])[]): string[] {
  const [first] = rounds;
  if (!first) {
    return ['does not answer'];
  }
  return first.map((_, column) => {
    const numbers = rounds.map((row) => row[column]!);
    if (column >= first.length - 2) {
      return `${numbers.reduce((sum, each) => sum + each, 0)}`;
    }
    const { median } = summarize(numbers);
    return Number.isNaN(median) ? '-' : numberText(median);
  });
}

/** The numbers of a row of the table. */
async function measure(peer: Peer, workload: Workload, port: number): Promise<number[]> {
  const seconds = options.quick ? 1 : Number(options.seconds ?? workload.seconds);
  const questions = await workload.questionsOf(peer);
  const server = new Server(peer, workload.model, port);
  try {
    await server.answers(questions);
    let wrong = await server.wrong(questions);
    let failures = 0;
    const numbers: number[] = [];
    // V8 compiles what has run thousands of times, which takes one client half a minute.
    await wrk(port, questions, 32, seconds);
    for (const count of connections) {
      await wrk(port, questions, count, Math.ceil(seconds / 2));
      // A server may still run what the connections of the warm-up have asked for.
      await server.answers(questions);
      const before = server.cpu();
      const { answers, failed, p50, p99, ...load } = await wrk(port, questions, count, seconds);
      const cpu = (server.cpu() - before) / answers / workload.unit[1];
      // Negative if a process has ended meanwhile, infinite without an answer.
      numbers.push(answers / load.seconds, p50, p99, cpu < 0 || answers === 0 ? NaN : cpu);
      failures += failed;
    }
    const memory = server.memory();
    wrong += await server.wrong(questions);
    console.error(peer.name, ...numbers.map(numberText));
    return [...numbers, memory, failures, wrong];
  } finally {
    await server.stop();
  }
}

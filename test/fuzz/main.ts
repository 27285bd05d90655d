import { availableParallelism, cpus } from 'node:os';
import { parseArgs } from 'node:util';
import { ServingService } from 'nestjs-serving';
import { boardOverHttp, openBoard } from './board.js';
import { endpointAnswers } from './endpoint.js';
import type { Entry } from './entry.js';
import { frames } from './frames.js';
import { fuzz, type FuzzReport } from './fuzz.js';
import { handshakes } from './handshakes.js';
import { batchedOverHttp, functionOverHttp, modelOverHttp } from './http.js';
import type { Memory } from './memory.js';
import { openProtocol, protocolOverHttp } from './protocol.js';
import { functionCalls, modelCalls, sizedCalls, threadCalls } from './service.js';
import { openSite } from './site.js';
import { protocolOverGrpc } from './protocol-grpc.js';
import { streams } from './streams.js';
import { heavyTexts, openTexts } from './texts.js';

const { values: options } = parseArgs({
  options: {
    count: { type: 'string', default: '100000' },
    seed: { type: 'string', default: String(Date.now() % 1e9) },
    only: { type: 'string', default: '' },
    /** Milliseconds; right for a machine that does nothing else. */
    standstill: { type: 'string', default: '50' },
  },
});
const [count, seed, mostStandstill] = [options.count, options.seed, options.standstill].map(
  Number,
) as [number, number, number];

/**
 * The most that the heap and the buffers may grow from the first round to the last, in megabytes.
 */
const GROWTH = 32;

console.log(
  `${count} hostile calls of each entry, seed ${seed}; ${availableParallelism()} x ${cpus()[0]?.model}, Node ${process.version}`,
);
const sites = { express: await openSite('express'), fastify: await openSite('fastify') };
const doors = { express: await openProtocol('express'), fastify: await openProtocol('fastify') };
const boards = { express: await openBoard('express'), fastify: await openBoard('fastify') };
const texts = { express: await openTexts('express'), fastify: await openTexts('fastify') };
const [express, fastify] = await Promise.all([sites.express.getUrl(), sites.fastify.getUrl()]);
const servings = sites.express.get(ServingService);
const closable = [
  await handshakes(),
  await streams(),
  await endpointAnswers(),
  await protocolOverGrpc(),
];
const entries: readonly Entry[] = [
  await modelOverHttp(express),
  functionOverHttp(fastify),
  batchedOverHttp(express),
  functionCalls(servings),
  threadCalls(servings),
  await modelCalls(servings),
  sizedCalls(servings),
  await protocolOverHttp('inference protocol, Express', await doors.express.getUrl()),
  await protocolOverHttp('inference protocol, Fastify', await doors.fastify.getUrl()),
  boardOverHttp('board, Express', await boards.express.getUrl()),
  boardOverHttp('board, Fastify', await boards.fastify.getUrl()),
  await frames(),
  await heavyTexts('heavy texts, Express', texts.express),
  await heavyTexts('heavy texts, Fastify', texts.fastify),
  ...closable,
];

let failed = false;
for (const entry of entries.filter(({ name }) => name.includes(options.only))) {
  const startedAt = performance.now();
  const report = await fuzz(entry, { count, seed, mostStandstill });
  failed = print(report, (performance.now() - startedAt) / 1000) || failed;
}
await Promise.all(
  [...[sites, doors, boards, texts].flatMap((apps) => Object.values(apps)), ...closable].map(
    (each) => each.close(),
  ),
);
process.exitCode = failed ? 1 : 0;

/** Prints the report; true if it is bad. */
function print(
  { entry, hostile, valid, outcomes, failures, memory, standstill }: FuzzReport,
  seconds: number,
): boolean {
  const [first, , last] = memory;
  const growth = first && last ? last.heap + last.buffers - first.heap - first.buffers : 0;
  console.log(`\n${entry}: ${hostile} hostile and ${valid} valid calls in ${seconds.toFixed(0)} s`);
  for (const [word, times] of [...outcomes].toSorted(([, a], [, b]) => b - a)) {
    console.log(`  ${word.padEnd(32)} ${String(times).padStart(8)}`);
  }
  const line = (name: keyof Memory): string =>
    memory.map((each) => each[name].toFixed(0)).join(', ');
  console.log(
    `  MB after the first round, halfway, at the end: heap ${line('heap')}; buffers ${line('buffers')}; process ${line('rss')}`,
  );
  console.log(
    `  ms that the event loop stood still: ${standstill.validOnly.toFixed(0)} with valid calls only, ${standstill.call.toFixed(0)} by ${standstill.words || 'no single call'}`,
  );
  failures.forEach((failure) => console.log(`  FAILED ${failure}`));
  if (growth > GROWTH) {
    console.log(`  FAILED memory grew by ${growth.toFixed(0)} MB`);
  }
  return failures.length > 0 || growth > GROWTH;
}

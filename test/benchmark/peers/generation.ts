import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { numberText } from '../harness/report.js';
import { summarize } from '../harness/statistics.js';

const script = fileURLToPath(new URL('./node/writers.js', import.meta.url));

/** Each writes answers in a process of its own. */
const writers = [
  { name: 'nestjs-serving, 32-bit weights', args: ['serving', 'f32'], places: [1, 8] },
  { name: 'llama.cpp, 32-bit weights', args: ['llama', 'f32'], places: [1, 8] },
  { name: 'transformers.js, 32-bit weights', args: ['transformers', 'f32'], places: [1] },
  { name: 'nestjs-serving, 8-bit weights', args: ['serving', 'q8'], places: [1, 8] },
  { name: 'llama.cpp, 8-bit weights', args: ['llama', 'q8'], places: [1, 8] },
];

interface Report {
  readonly tokens: number;
  readonly seconds: number;
  readonly cpu: number;
}

/** Runs the chosen writers in turn, in each round once, and returns a table of their medians. */
export async function generationTable(
  isChosen: (writer: { readonly name: string }) => boolean,
  rounds: number,
): Promise<string[]> {
  const chosen = writers.filter(isChosen);
  const runs = chosen.flatMap(({ name, args, places }) =>
    places.map((count) => ({ name, count, args: [...args, `${count}`], reports: [] as Report[] })),
  );
  for (let round = 0; round < rounds; round++) {
    for (const { args, reports } of runs) {
      const { stdout } = await promisify(execFile)(process.execPath, [script, ...args]);
      reports.push(JSON.parse(stdout.trim().split('\n').at(-1)!) as Report);
    }
  }
  return [
    '| writer | answers at once | tokens/s | CPU ms/token |',
    '| --- | ---: | ---: | ---: |',
    ...runs.map(({ name, count, reports }) => {
      const rate = summarize(reports.map(({ tokens, seconds }) => tokens / seconds));
      const used = summarize(reports.map(({ tokens, cpu }) => (cpu * 1000) / tokens));
      return `| ${[name, count, numberText(rate.median), numberText(used.median)].join(' | ')} |`;
    }),
  ];
}

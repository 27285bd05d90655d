import { readFileSync } from 'node:fs';
import { Command, CommanderError } from 'commander';
import { messageOf } from '../../internal.js';
import {
  parseDuration,
  parseHeader,
  parseInput,
  parseNumbers,
  parseShape,
  parseWhole,
  parseWholes,
} from './arguments.js';
import type { BenchOptions } from './bench/bench.command.js';
import type { CliOutput } from './output.js';
import { powersOfTwo } from './tune/settings.js';
import type { TuneOptions } from './tune/tune.command.js';

const FAILED = 1;
const MISUSED = 2;

/** Takes arguments without node and script; resolves with the exit code. */
export async function runProgram(args: readonly string[], out: CliOutput): Promise<number> {
  try {
    await programFor(out).parseAsync(args, { from: 'user' });
    return 0;
  } catch (error) {
    if (error instanceof CommanderError) {
      // Commander has already written a message.
      return error.exitCode === 0 ? 0 : MISUSED;
    }
    out.note(`${out.styled('red', 'error')} ${messageOf(error)}`);
    return FAILED;
  }
}

function programFor(out: CliOutput): Command {
  const program = new Command('nestjs-serving')
    .description('Looks at models and measures servings.')
    .version(versionOfPackage())
    .showHelpAfterError('Run it with --help for what it takes.')
    .exitOverride()
    .configureOutput({
      writeOut: (text) => out.print(text.trimEnd()),
      writeErr: (text) => out.note(text.trimEnd()),
    });
  program
    .command('inspect')
    .description(
      'Describes an ONNX model: inputs, outputs, batch axes, precision, and what to mind.',
    )
    .argument('<model>', 'the path of an ONNX file')
    .option('--json', 'print the description as JSON')
    .action(async (model: string, options: { json?: boolean }) => {
      const { inspect } = await import('./inspect/inspect.command.js');
      inspect(model, options, out);
    });
  program
    .command('tune')
    .description('Finds the options of a model that answer the most calls within a target.')
    .argument('<model>', 'the path of an ONNX file')
    .requiredOption('--target <time>', 'the time for 99 of 100 calls, such as 50ms', parseDuration)
    .option('--duration <time>', 'the time of each load', parseDuration, 2000)
    .option('--rows <number>', 'the rows of each call', parseWhole, 1)
    .option('--batch-sizes <list>', 'the batch sizes to try', parseWholes, powersOfTwo(64))
    .option(
      '--partitions <list>',
      'the numbers of partitions to try, by default up to the cores',
      parseWholes,
    )
    .option(
      '--threads <list>',
      'the threads of a partition to try, by default cores ÷ partitions',
      parseWholes,
    )
    .option(
      '--shape <input=sizes>',
      'the shape of an input with open axes: tokens=1x128; once for each',
      parseShape,
    )
    .option('--json', 'print the results as JSON')
    .action(async (model: string, options: TuneOptions) => {
      // Only this command loads Nest.
      const { tune } = await import('./tune/tune.command.js');
      await tune(model, options, out);
    });
  program
    .command('bench')
    .description(
      'Measures the latency of a running serving against its load, by the Open Inference Protocol.',
    )
    .argument('<url>', 'the address of the application')
    .requiredOption('--model <name>', 'the name of the model')
    .option('--model-version <label>', 'its version')
    .option(
      '--rates <list>',
      'calls per second, such as 100,200; by default shares of what it can do',
      parseNumbers,
    )
    .option('--duration <time>', 'the time of each load', parseDuration, 5000)
    .option('--rows <number>', 'the rows of each call', parseWhole, 1)
    .option(
      '--input <row>',
      'the row of each call, for a model of texts: a text, or JSON for a serving with preprocess; @file reads it from a file',
      parseInput,
    )
    .option('--connections <number>', 'the connections at most', parseWhole, 64)
    .option(
      '--shape <input=sizes>',
      'the shape of an input with open axes: tokens=1x128; once for each',
      parseShape,
    )
    .option(
      '--header <name: value>',
      'a header of each call, such as an API key; once for each',
      parseHeader,
    )
    .option('--json', 'print the results as JSON')
    .action(async (url: string, options: BenchOptions) => {
      const { bench } = await import('./bench/bench.command.js');
      await bench(url, options, out);
    });
  return program;
}

function versionOfPackage(): string {
  const file = new URL('../../../../package.json', import.meta.url);
  return (JSON.parse(readFileSync(file, 'utf8')) as { readonly version: string }).version;
}

import { readFileSync } from 'node:fs';
import { Command, CommanderError, InvalidArgumentError } from 'commander';
import { messageOf } from '../../doors/text.js';
import type { BenchOptions } from './bench/bench.command.js';
import type { InspectOptions } from './inspect/inspect.command.js';
import type { CliOutput } from './output.js';
import { powersOfTwo, type TuneOptions } from './tune/tune.command.js';

const FAILED = 1;
const MISUSED = 2;

/** Resolves with the exit code. */
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
    .option('--no-run', 'read the file only, and run no rows alone and together')
    .option('--json', 'print the description as JSON')
    .action(async (model: string, options: InspectOptions) => {
      const { inspect } = await import('./inspect/inspect.command.js');
      await inspect(model, options, out);
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

/** `50ms`, `0.5s` or `50` in milliseconds. */
export function parseDuration(text: string): number {
  const [, number, unit] = /^(\d+(?:\.\d+)?)(ms|s|m)?$/.exec(text) ?? [];
  const factor = { ms: 1, s: 1000, m: 60_000 }[unit ?? 'ms']!;
  const milliseconds = Number(number) * factor;
  if (!(milliseconds > 0)) {
    throw new InvalidArgumentError('Give a time such as 50ms, 2s or 1m.');
  }
  return milliseconds;
}

/** `1,2,4` */
export function parseWholes(text: string): readonly number[] {
  const numbers = text.split(',').map(Number);
  if (!numbers.every((number) => Number.isSafeInteger(number) && number > 0)) {
    throw new InvalidArgumentError('Give whole numbers from 1 on, such as 1,2,4.');
  }
  return numbers;
}

export function parseWhole(text: string): number {
  const [number, ...others] = parseWholes(text);
  if (others.length > 0) {
    throw new InvalidArgumentError('Give one whole number.');
  }
  return number!;
}

/** `0.5,100` */
export function parseNumbers(text: string): readonly number[] {
  const numbers = text.split(',').map(Number);
  if (!numbers.every((number) => Number.isFinite(number) && number > 0)) {
    throw new InvalidArgumentError('Give numbers above 0, such as 100,200.');
  }
  return numbers;
}

/** Adds `image=1x3x224x224` to the previous shapes. */
export function parseShape(
  text: string,
  before: Readonly<Record<string, readonly number[]>> = {},
): Readonly<Record<string, readonly number[]>> {
  const at = text.lastIndexOf('=');
  const sizes = text.slice(at + 1).split('x');
  const dims = sizes.map(Number);
  if (at < 1 || !sizes.every((size) => /^\d{1,15}$/.test(size))) {
    throw new InvalidArgumentError('Give a name and sizes, such as image=1x3x224x224.');
  }
  return { ...before, [text.slice(0, at)]: dims };
}

/** Reads the file of `@row.json`. */
export function parseInput(text: string): string {
  if (!text.startsWith('@')) {
    return text;
  }
  try {
    return readFileSync(text.slice(1), 'utf8');
  } catch (error) {
    throw new InvalidArgumentError(`The file cannot be read: ${messageOf(error)}`);
  }
}

/** Adds `x-api-key: secret` to the previous headers. */
export function parseHeader(
  text: string,
  before: Readonly<Record<string, string>> = {},
): Readonly<Record<string, string>> {
  const [, name, value] = /^([\w-]+):\s*(.+)$/.exec(text) ?? [];
  if (name === undefined || value === undefined) {
    throw new InvalidArgumentError("Give a name and a value, such as 'x-api-key: secret'.");
  }
  return { ...before, [name]: value };
}

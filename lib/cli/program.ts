import { readFileSync } from 'node:fs';
import { Command, CommanderError } from 'commander';
import { messageOf } from '../errors.js';
import { inspect } from './inspect/inspect.command.js';
import type { CliOutput } from './output.js';

/** The exit codes of a command that failed, and of a command line that is wrong. */
const FAILED = 1;
const MISUSED = 2;

/** Runs a command line, without the names of node and script; resolves with its exit code. */
export async function runProgram(args: readonly string[], out: CliOutput): Promise<number> {
  try {
    await programFor(out).parseAsync(args, { from: 'user' });
    return 0;
  } catch (error) {
    if (error instanceof CommanderError) {
      // Commander has written the help, or what is wrong.
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
    .action((model: string, options: { json?: boolean }) => inspect(model, options, out));
  return program;
}

function versionOfPackage(): string {
  const file = new URL('../../../package.json', import.meta.url);
  return (JSON.parse(readFileSync(file, 'utf8')) as { readonly version: string }).version;
}

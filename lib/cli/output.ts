import { styleText } from 'node:util';

type Style = 'bold' | 'dim' | 'yellow' | 'red' | 'green';

/** Where a command writes: results to standard output, all else to standard error. */
export class CliOutput {
  private readonly hasColors: boolean;

  constructor(
    private readonly results: NodeJS.WriteStream = process.stdout,
    private readonly notes: NodeJS.WriteStream = process.stderr,
    environment: NodeJS.ProcessEnv = process.env,
  ) {
    // https://no-color.org
    this.hasColors = results.isTTY && !environment['NO_COLOR'];
  }

  /** Whether a person watches: standard error is a terminal. */
  get hasProgress(): boolean {
    return this.notes.isTTY;
  }

  print(text: string): void {
    this.results.write(`${text}\n`);
  }

  note(text: string): void {
    this.notes.write(`${text}\n`);
  }

  /** The text in that style, on a terminal with colors. */
  styled(style: Style, text: string): string {
    return this.hasColors ? styleText(style, text) : text;
  }
}

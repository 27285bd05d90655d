import { styleText } from 'node:util';

type Style = 'bold' | 'dim' | 'yellow' | 'red' | 'green';

/** Results go to standard output, everything else to standard error. */
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

  get hasProgress(): boolean {
    return this.notes.isTTY;
  }

  print(text: string): void {
    this.results.write(`${text}\n`);
  }

  note(text: string): void {
    this.notes.write(`${text}\n`);
  }

  styled(style: Style, text: string): string {
    return this.hasColors ? styleText(style, text) : text;
  }
}

/** Right-aligns columns of numbers. */
export function tableOf(header: readonly string[], rows: readonly (readonly string[])[]): string {
  const widths = header.map((name, column) =>
    Math.max(name.length, ...rows.map((row) => row[column]?.length ?? 0)),
  );
  const isNumeric = header.map((_, column) =>
    rows.every((row) => /^[\d-]/.test(row[column] ?? '')),
  );
  const line = (cells: readonly string[]): string =>
    cells
      .map((cell, column) =>
        isNumeric[column] ? cell.padStart(widths[column]!) : cell.padEnd(widths[column]!),
      )
      .join('  ')
      .trimEnd();
  return [line(header), ...rows.map(line)].join('\n');
}

/** About three digits: `1234`, `12.3`, `0.123`. */
export function shortNumber(value: number): string {
  return value >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
}

/** Writes nothing outside a terminal. */
export class ProgressBar {
  private done = 0;

  /** @param stream standard error, since results may be piped */
  constructor(
    private readonly total: number,
    private readonly isShown: boolean,
    private readonly stream: NodeJS.WriteStream = process.stderr,
  ) {}

  /** Counts the previous step as done. */
  step(description: string): void {
    this.show(description);
    this.done = Math.min(this.done + 1, this.total);
  }

  end(): void {
    if (this.isShown) {
      this.stream.write('\r\u001B[K');
    }
  }

  private show(description: string): void {
    if (!this.isShown) {
      return;
    }
    const width = 30;
    const full = Math.round((width * this.done) / this.total);
    const bar = '█'.repeat(full) + '░'.repeat(width - full);
    const line = `${bar} ${description}`;
    this.stream.write(`\r\u001B[K${line.slice(0, (this.stream.columns || 80) - 1)}`);
  }
}

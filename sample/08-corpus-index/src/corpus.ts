import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';

const linesPerChunk = 200;

/** A part of a corpus: the data of one job. */
export interface Chunk {
  /** The id of the corpus. */
  readonly corpus: string;
  /** The number of the first line. */
  readonly first: number;
  readonly lines: readonly string[];
}

/** Lines of text, numbered from 0. */
export class Corpus {
  /** Follows from the lines, so the same corpus has the same id after a restart. */
  readonly id: string;

  constructor(readonly lines: readonly string[]) {
    this.id = createHash('sha256').update(lines.join('\n')).digest('hex').slice(0, 12);
  }

  /** The lines of the file `CORPUS`, or 4000 reports to the service desk of a town. */
  static async read(): Promise<Corpus> {
    const file = process.env.CORPUS;
    if (file === undefined) {
      return new Corpus(await readReports());
    }
    const lines = (await readFile(file, 'utf8')).split(/\r?\n/);
    return new Corpus(lines.filter((line) => line.trim() !== ''));
  }

  get chunks(): readonly Chunk[] {
    const { id, lines } = this;
    return Array.from({ length: Math.ceil(lines.length / linesPerChunk) }, (_, index) => {
      const first = index * linesPerChunk;
      return { corpus: id, first, lines: lines.slice(first, first + linesPerChunk) };
    });
  }
}

interface Reports {
  readonly problems: readonly string[];
  readonly places: readonly string[];
  readonly times: readonly string[];
}

async function readReports(): Promise<readonly string[]> {
  const file = new URL('../reports.json', import.meta.url);
  const { problems, places, times } = JSON.parse(await readFile(file, 'utf8')) as Reports;
  return times.flatMap((time) =>
    places.flatMap((place) => problems.map((problem) => `${problem} ${place}, ${time}.`)),
  );
}

import { readFileSync, writeFileSync } from 'node:fs';
import { setTimeout } from 'node:timers/promises';

/**
 * A file in which worker processes write down what they do, so that it is known also of those that
 * die.
 */
export class Diary {
  constructor(readonly path: string) {
    writeFileSync(path, '');
  }

  lines(): string[] {
    return readFileSync(this.path, 'utf8').split('\n').slice(0, -1);
  }

  words(): string[] {
    return this.lines().flatMap((line) => line.split(' '));
  }

  /** Resolves when that is in it. */
  async until(isSo: (words: readonly string[]) => boolean): Promise<void> {
    while (!isSo(this.words())) {
      await setTimeout(10);
    }
  }
}

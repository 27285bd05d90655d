import { appendFileSync } from 'node:fs';
import { type BatchFunction, DONE } from 'nestjs-serving';
import type { LettersOptions, LettersRow } from '../options.js';

/** Streams texts that tell their row and their step, for as many steps as each row asks for. */
export default function letters({
  options: { diary },
}: {
  readonly options: LettersOptions;
}): BatchFunction {
  const note = (text: string): void => {
    if (diary !== undefined) {
      appendFileSync(diary, `${text}\n`);
    }
  };
  return async function* (rows: LettersRow[], { isWaiting }) {
    note('begins');
    try {
      for (
        let step = 0;
        rows.some(({ steps = Infinity }, row) => step < steps && isWaiting(row));
        step++
      ) {
        yield rows.map(({ id, steps = Infinity, length }) =>
          step < steps ? `${id}:${step}`.padEnd(length, '.') : DONE,
        );
      }
    } finally {
      note('ends');
    }
  };
}

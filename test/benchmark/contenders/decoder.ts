import { DONE, type PartitionOptions, last, type SequenceModel } from 'nestjs-serving';

/** A prompt of this many tokens, whose answer has this many. */
export interface Prompt {
  readonly tokens: number;
  readonly answer: number;
}

/**
 * A fifth of the times of the token stream sample on two cores: milliseconds of a step by its rows,
 * and of reading prompts by their tokens.
 */
const SCALE = 0.2;
const stepTime = (rows: number): number => SCALE * (10.9 + 1.43 * rows);
const readTime = (tokens: number): number => SCALE * (12 + 0.4 * tokens);

/**
 * A language model that only takes time. It blocks its thread, as a run of onnxruntime does, and
 * needs no core for that. `kind` of the options: `sequence`, or `static` for a generator.
 */
export default function decoder({ options }: { options: PartitionOptions }): unknown {
  return options['kind'] === 'sequence' ? model : writeAll;
}

const model: SequenceModel<Prompt, number, { readonly answer: number; token: number }> = {
  start: (prompts) => {
    read(prompts);
    return prompts.map(({ answer }) => ({ answer, token: 0 }));
  },
  step: (rows) => {
    block(stepTime(rows.length));
    return rows.map((row) => (++row.token < row.answer ? row.token : last(row.token)));
  },
};

/** Leaves out the rows that have ended, as that sample did with static batches. */
function* writeAll(prompts: readonly Prompt[]): Generator<unknown[], void> {
  read(prompts);
  for (let token = 1, rows = prompts.length; rows > 0; token++) {
    block(stepTime(rows));
    yield prompts.map(({ answer }) => (token <= answer ? token : DONE));
    rows = prompts.filter(({ answer }) => token < answer).length;
  }
}

function read(prompts: readonly Prompt[]): void {
  block(readTime(prompts.reduce((sum, { tokens }) => sum + tokens, 0)));
}

const cell = new Int32Array(new SharedArrayBuffer(4));

function block(milliseconds: number): void {
  Atomics.wait(cell, 0, 0, milliseconds);
}

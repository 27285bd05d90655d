const WORDS =
  'the model reads texts of any length and gives each caller the vector of its own text while others wait for a batch that holds rows like theirs'.split(
    ' ',
  );

/** 14 of 20 texts are questions, 5 paragraphs, and 1 is longer. */
export function textOf(i: number): string {
  const kind = i % 20;
  const [least, most] = kind < 14 ? [5, 16] : kind < 19 ? [30, 90] : [120, 170];
  const length = least + ((i * 7919) % (most - least + 1));
  return Array.from({ length }, (_, at) => WORDS[(i * 31 + at * 17) % WORDS.length]).join(' ');
}

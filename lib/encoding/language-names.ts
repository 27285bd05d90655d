const inEnglish = new Intl.DisplayNames('en', { type: 'language' });

/** Languages that OpenAI names unlike Unicode. */
const OTHER_NAMES: Readonly<Record<string, string>> = {
  bn: 'bengali',
  mi: 'maori',
  my: 'myanmar',
  nn: 'nynorsk',
  tl: 'tagalog',
};

/** Further names that Whisper knows. */
const MORE_NAMES: Readonly<Record<string, readonly string[]>> = {
  ca: ['valencian'],
  es: ['castilian'],
  ht: ['haitian'],
  lb: ['letzeburgesch'],
  nl: ['flemish'],
  pa: ['panjabi'],
  ps: ['pushto'],
  ro: ['moldavian', 'moldovan'],
  si: ['sinhalese'],
  zh: ['mandarin'],
};

/** Name as in OpenAI's answers, such as `french`; the code itself without one. */
export function languageName(code: string): string {
  return OTHER_NAMES[code] ?? unicodeName(code) ?? code;
}

function unicodeName(code: string): string | undefined {
  return /^[a-z]{2,3}$/.test(code) ? inEnglish.of(code)?.toLowerCase() : undefined;
}

function namesOf(code: string): readonly (string | undefined)[] {
  const token = `<|${code}|>`;
  return [code, token, languageName(code), unicodeName(code), ...(MORE_NAMES[code] ?? [])];
}

/**
 * Code among these of a language by its code, name or Whisper's token, such as `de`, `German` and
 * `<|de|>`. A region, as in `de-AT`, changes nothing.
 */
export function languageCode(named: string, codes: readonly string[]): string | undefined {
  const name = named.toLowerCase();
  const [base] = name.split(/[-_]/);
  return codes.find((code) => namesOf(code).includes(name)) ?? codes.find((code) => code === base);
}

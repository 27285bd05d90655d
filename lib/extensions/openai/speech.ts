import type { CallOptions } from '../../index.js';
import { languageName } from '../../encoding/language-names.js';
import { formatValue } from '../../doors/text.js';
import type { Form } from './form.js';
import { beginEvents, eventOf, RequestError } from './http.js';
import { checkFormFields, FIELDS, nameOf } from './known-fields.js';
import type { OfferedModels } from './models.js';

/** Reply of a 'speech-to-text' serving, whole or a piece. */
interface Transcript {
  readonly text: string;
  readonly segments: readonly TranscriptSegment[];
  readonly language?: string;
  readonly duration: number;
}

interface TranscriptSegment {
  readonly text: string;
  readonly start: number;
  readonly end: number;
  /** Missing unless asked for, and in a serving that isn't a `speechToText`. */
  readonly words?: readonly {
    readonly text: string;
    readonly start: number;
    readonly end: number;
  }[];
  /** Missing in a serving that isn't a `speechToText`. */
  readonly tokens?: readonly number[];
  readonly window?: {
    readonly start: number;
    readonly temperature: number;
    readonly logprob: number;
    readonly compressionRatio: number;
    readonly silence: number;
  };
}

export type SpeechAnswer =
  | { readonly json: object }
  | { readonly text: string; readonly type: string }
  | { readonly events: AsyncIterable<string> };

type Task = 'transcribe' | 'translate';

const FORMATS = {
  json: ({ text }: Transcript): SpeechAnswer => ({ json: { text } }),
  text: ({ text }: Transcript): SpeechAnswer => ({ text: `${text}\n`, type: 'text/plain' }),
  verbose_json: (
    { text, segments, language, duration }: Transcript,
    task: Task,
    granularities: ReadonlySet<string>,
  ): SpeechAnswer => ({
    json: {
      task,
      language: language === undefined ? null : languageName(language),
      duration,
      text,
      ...(granularities.has('word') && { words: segments.flatMap(wordsOf) }),
      ...(granularities.has('segment') && { segments: segments.map(detailsOf) }),
    },
  }),
  srt: ({ segments }: Transcript): SpeechAnswer => ({
    text: segments
      .map(({ text, start, end }, i) => {
        return `${i + 1}\n${timeOf(start, ',')} --> ${timeOf(end, ',')}\n${text}\n\n`;
      })
      .join(''),
    type: 'application/x-subrip',
  }),
  vtt: ({ segments }: Transcript): SpeechAnswer => ({
    text: segments.reduce(
      (all, { text, start, end }) =>
        `${all}${timeOf(start, '.')} --> ${timeOf(end, '.')}\n${text}\n\n`,
      'WEBVTT\n\n',
    ),
    type: 'text/vtt',
  }),
};

/**
 * Answers https://platform.openai.com/docs/api-reference/audio/createTranscription and, in English,
 * `createTranslation`.
 *
 * @throws RequestError for a form that the model can't follow
 */
export async function answerSpeech(
  models: OfferedModels,
  form: Form,
  task: Task,
  options: CallOptions,
): Promise<SpeechAnswer> {
  const { serving } = models.find(textIn(form, 'model'), 'speech-to-text');
  checkFormFields(form, task === 'translate' ? FIELDS.translations : FIELDS.transcriptions);
  const format = textIn(form, 'response_format') ?? 'json';
  if (!isFormat(format)) {
    const known = Object.keys(FORMATS).map(formatValue).join(', ');
    throw new RequestError(
      `"response_format" is ${formatValue(format)}; allowed is ${known}`,
      'response_format',
    );
  }
  const audio = valueIn(form, 'file');
  if (typeof audio !== 'object') {
    throw new RequestError('"file" is missing; send the bytes of an audio file', 'file');
  }
  const isStream = flagIn(form, 'stream');
  if (isStream && format !== 'json' && format !== 'text') {
    throw new RequestError(
      `"response_format" is ${formatValue(format)}, and a stream is "json" or "text"`,
      'response_format',
    );
  }
  const granularities = granularitiesIn(form);
  const words = granularities.has('word');
  if (words && format !== 'verbose_json') {
    throw new RequestError(
      `"timestamp_granularities" is "word", which needs "response_format" "verbose_json", and ` +
        `it is ${formatValue(format)}`,
      'timestamp_granularities',
    );
  }
  const language = textIn(form, 'language');
  const prompt = textIn(form, 'prompt');
  const temperature = temperatureIn(form);
  const input = {
    audio,
    task,
    ...(language !== undefined && { language }),
    ...(prompt !== undefined && { prompt }),
    ...(temperature > 0 && { temperature }),
    ...(words && { words }),
  };
  if (isStream) {
    return { events: await beginEvents(serving.stream(input, options), partsOf) };
  }
  const transcript = (await serving.batchedRun(input, options)) as Transcript;
  return FORMATS[format](transcript, task, granularities);
}

function isFormat(value: string): value is keyof typeof FORMATS {
  return Object.hasOwn(FORMATS, value);
}

function valueIn(form: Form, name: string): Form[number][1] | undefined {
  return form.find(([each]) => each === name)?.[1];
}

/** Undefined without the field, or if empty. */
function textIn(form: Form, name: string): string | undefined {
  const value = valueIn(form, name) ?? '';
  if (typeof value !== 'string') {
    throw new RequestError(`"${name}" is a file; give a text`, name);
  }
  return value === '' ? undefined : value;
}

function granularitiesIn(form: Form): ReadonlySet<string> {
  const asked = form.flatMap(([name, value]) =>
    nameOf(name) === 'timestamp_granularities' && typeof value === 'string' ? [value] : [],
  );
  return new Set(asked.length === 0 ? ['segment'] : asked);
}

/** With 0, as without the field, the serving's own temperatures are tried. */
function temperatureIn(form: Form): number {
  const value = textIn(form, 'temperature') ?? '0';
  const temperature = Number(value);
  if (!(temperature >= 0 && temperature <= 1)) {
    throw new RequestError(
      `"temperature" is ${formatValue(value)}; allowed is a number from 0 to 1`,
      'temperature',
    );
  }
  return temperature;
}

/** Flag as clients of several languages write it. */
function flagIn(form: Form, name: string): boolean {
  const value = textIn(form, name) ?? 'false';
  if (!/^(true|false|1|0)$/i.test(value)) {
    throw new RequestError(`"${name}" is ${formatValue(value)}; allowed is true or false`, name);
  }
  return /^(true|1)$/i.test(value);
}

/** @throws RequestError if the serving gives no words */
function wordsOf({ words }: TranscriptSegment): object[] {
  if (!words) {
    throw new RequestError(
      '"timestamp_granularities" is "word", and this model gives no times of words; leave it out',
      'timestamp_granularities',
    );
  }
  return words.map(({ text, start, end }) => ({ word: text, start, end }));
}

/** Segment in OpenAI's terms; its windows count frames of 10 ms. */
function detailsOf({ text, start, end, tokens, window }: TranscriptSegment, id: number): object {
  return {
    id,
    text,
    start,
    end,
    ...(tokens && { tokens }),
    ...(window && {
      temperature: window.temperature,
      seek: Math.round(window.start * 100),
      avg_logprob: window.logprob,
      compression_ratio: window.compressionRatio,
      no_speech_prob: window.silence,
    }),
  };
}

/** Writes `01:02:03,004`. */
function timeOf(seconds: number, separator: ',' | '.'): string {
  const time = new Date(Math.round(seconds * 1000)).toISOString().slice(11, 23);
  return time.replace('.', separator);
}

async function* partsOf(pieces: AsyncIterable<Transcript>): AsyncGenerator<string> {
  let text = '';
  for await (const { text: delta } of pieces) {
    text += delta;
    if (delta !== '') {
      yield eventOf({ type: 'transcript.text.delta', delta });
    }
  }
  yield eventOf({ type: 'transcript.text.done', text: text.trim() });
}

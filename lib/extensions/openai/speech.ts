import type { CallOptions } from '../../index.js';
import { languageName } from '../../encoding/language-names.js';
import { formatValue } from '../../doors/text.js';
import type { Form } from './form.js';
import { beginEvents, eventOf, RequestError } from './http.js';
import { checkFormFields, FIELDS } from './known-fields.js';
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
  /** Missing in a serving that isn't a `speechToText`. */
  readonly tokens?: readonly number[];
  readonly window?: {
    readonly start: number;
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
  verbose_json: ({ text, segments, language, duration }: Transcript, task: Task): SpeechAnswer => ({
    json: {
      task,
      language: language === undefined ? null : languageName(language),
      duration,
      text,
      segments: segments.map(detailsOf),
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
  const language = textIn(form, 'language');
  const input = { audio, task, ...(language !== undefined && { language }) };
  if (isStream) {
    return { events: await beginEvents(serving.stream(input, options), partsOf) };
  }
  return FORMATS[format]((await serving.batchedRun(input, options)) as Transcript, task);
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

/** Flag as clients of several languages write it. */
function flagIn(form: Form, name: string): boolean {
  const value = textIn(form, name) ?? 'false';
  if (!/^(true|false|1|0)$/i.test(value)) {
    throw new RequestError(`"${name}" is ${formatValue(value)}; allowed is true or false`, name);
  }
  return /^(true|1)$/i.test(value);
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
      temperature: 0,
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

import { deflateSync } from 'node:zlib';
import type { InferenceSession } from 'onnxruntime-common';
import {
  last,
  InvalidInputError,
  InvalidOutputError,
  PENDING,
  type SequenceModel,
  type SequenceResult,
  ServingError,
  ServingLoadError,
  Tensor,
} from '../../index.js';
import { messageOf } from '../../doors/text.js';
import { blankOf } from '../../doors/values.js';
import { LogMel, type MelOptions } from './log-mel.js';
import type { SessionOfThread } from '../../doors/models.js';
import { free, sessionOf } from './onnx-session.js';
import { openable, type OnnxFile } from './repository.js';
import { floatsOf } from './outputs.js';
import { likeliest as highestOf, logProbabilityOf, Sampler } from './sampling.js';
import {
  type LimitsOfTexts,
  placed,
  TextLimits,
  type TextTokenizer,
  textTokenizer,
} from './text-tokenizer.js';
import { type AlignmentHead, Attention, attentionsOf, wordsOf } from './word-times.js';

/** Speech as sent to the model's thread. */
export interface SpeechRow {
  /** Samples of one channel, at the model's rate. */
  readonly samples: Float32Array;
  /** Token of the language; undefined to recognise it. */
  readonly language: number | undefined;
  /** Tokens between the language and the text. */
  readonly task: readonly number[];
  /** Text that each window follows on. */
  readonly prompt: string;
  /** True if a window also follows on the text of those before. */
  readonly followsText: boolean;
  /** Temperatures to try until a window's text is good. */
  readonly temperatures: readonly number[];
  /** True for words with times. */
  readonly words: boolean;
}

/** Text of speech, whole or a piece. */
export interface Transcript {
  /** Text; in a stream, since the last piece. */
  readonly text: string;
  /** Parts of the text with their times. */
  readonly segments: readonly TranscriptSegment[];
  /** Code such as `en`; undefined for a model with one language. */
  readonly language?: string;
  /** Seconds of audio. */
  readonly duration: number;
}

/** Part of a transcript. */
export interface TranscriptSegment {
  /** Text without spaces around it. */
  readonly text: string;
  /** Seconds from the audio's beginning. */
  readonly start: number;
  /** Seconds from the audio's beginning. */
  readonly end: number;
  /** Words with their times, if the call asked for them. */
  readonly words?: readonly TranscriptWord[];
  /** The model's tokens, including times. */
  readonly tokens: readonly number[];
  /** Window of audio that has it. */
  readonly window: TranscriptWindow;
}

/** Word of a transcript with the punctuation next to it; in Chinese or Japanese a character. */
export interface TranscriptWord {
  /** Text without spaces around it. */
  readonly text: string;
  /** Seconds from the audio's beginning. */
  readonly start: number;
  /** Seconds from the audio's beginning. */
  readonly end: number;
}

/** Window of audio, which the model reads as a whole. */
export interface TranscriptWindow {
  /** Seconds from the audio's beginning. */
  readonly start: number;
  /** Temperature of its text; 0 for the likeliest tokens. */
  readonly temperature: number;
  /** Mean of its tokens' log-probabilities: below -1, the model was unsure. */
  readonly logprob: number;
  /** Factor by which zlib shortens the text: above 2.4, it probably repeats itself. */
  readonly compressionRatio: number;
  /** Probability that the window has no speech. */
  readonly silence: number;
}

/** Special tokens of a model, and tokens that it must not write. */
export interface SpeechTokens {
  /** Begins a text. */
  readonly start: number;
  /** Begins the text that a window follows on; undefined for a model without it. */
  readonly previous: number | undefined;
  /** The window has no speech. */
  readonly silence: number;
  /** Ends a text. Larger tokens are special. */
  readonly end: number;
  /** Time 0. Each larger token is 20 ms later. */
  readonly firstTime: number;
  /** Latest time, in tokens, at which a window's text may begin; undefined for any. */
  readonly latestBegin: number | undefined;
  readonly suppressed: readonly number[];
  /** Tokens that no text begins with. */
  readonly suppressedFirst: readonly number[];
  /** Codes by token; empty for a model with one language. */
  readonly languages: Readonly<Record<number, string>>;
  /** Most tokens of a window, including those before its text. */
  readonly most: number;
}

export interface TranscriberFiles {
  /** Model's name, for errors. */
  readonly name: string;
  readonly encoder: OnnxFile;
  readonly decoder: OnnxFile;
  readonly tokenizer: Record<string, unknown>;
  readonly tokenizerConfig: Record<string, unknown>;
  readonly prompts: LimitsOfTexts;
  readonly mel: MelOptions;
  readonly tokens: SpeechTokens;
  /** Decoder's heads for times of words, if stated. */
  readonly alignment: readonly AlignmentHead[];
  /** Frames of the median that smooths their weights. */
  readonly filterWidth: number;
  readonly session: InferenceSession.SessionOptions;
}

/** Runs in its own thread. */
export default async function ({
  options,
}: {
  options: Readonly<Record<string, unknown>>;
}): Promise<Transcriber> {
  const { transcription, sessions, ...own } = options as {
    transcription: TranscriberFiles;
    sessions?: readonly [decoder: bigint, encoder: bigint];
  };
  const { name, encoder, decoder, mel, tokenizer: tokenizerJson, prompts } = transcription;
  const session = { ...transcription.session, ...own };
  const [reader, writer, tokenizer] = await Promise.all([
    sessionOf(name, await openable(name, encoder), session, sessions?.[1]),
    sessionOf(name, await openable(name, decoder), session, sessions?.[0]),
    textTokenizer(
      { name, tokenizerJson, ofTokenizer: transcription.tokenizerConfig, lowers: false },
      new TextLimits(prompts),
    ),
  ]);
  checkFeatures(reader, mel, name);
  const model = new SpeechModel(reader, writer, name);
  return new Transcriber(model, new LogMel(mel), tokenizer, transcription);
}

/** @throws ServingLoadError if the encoder's spectrograms differ from preprocessor_config.json */
function checkFeatures(encoder: SessionOfThread, mel: MelOptions, name: string): void {
  const [input] = encoder.inputMetadata;
  const [, bands, frames] = input?.isTensor ? input.shape : [];
  const stated = [mel.bands, mel.window / mel.hop];
  const isOther = [bands, frames].some((size, i) => typeof size === 'number' && size !== stated[i]);
  if (isOther) {
    throw new ServingLoadError(
      `The encoder of ${name} reads spectrograms of ${String(bands)} x ${String(frames)}, and its ` +
        `preprocessor_config.json states ${stated.join(' x ')} (feature_size, and chunk_length with ` +
        'sampling_rate and hop_length); correct the file',
    );
  }
}

/** Audio being written down. */
interface Hearing {
  readonly row: SpeechRow;
  readonly prompt: readonly number[];
  /** Beginning of its window, in frames. */
  frame: number;
  language: number | undefined;
  window: SpeechWindow | undefined;
  /** Place of the window's temperature. */
  attempt: number;
  /** Draws the window's tokens, once the decoder has read what stands before them. */
  sampler: Sampler | undefined;
  /** Tokens of the windows before, if it follows on them. */
  said: readonly number[];
  /** Text of the window. */
  tokens: number[];
  /** Sum of its tokens' log-probabilities. */
  certainty: number;
  /** Probability of no speech. */
  silence: number;
}

/** Thresholds of OpenAI's code: the model finds no speech, is unsure of its text, or repeats it. */
const SILENCE = 0.6;
const UNSURE = -1;
const REPETITIVE = 2.4;

/** Highest temperature whose text the next window may follow on, as in OpenAI's code. */
const FOLLOWED = 0.5;

/** Loudest sample: 1, with much room for filters; samples of 16 bits are louder. */
const LOUDEST = 100;

/** Seconds per time token. */
const TIME_STEP = 0.02;

/**
 * Writes down speech by Whisper's models, window by window: each begins at the last sure time.
 * Follows https://github.com/openai/whisper/blob/main/whisper/transcribe.py.
 */
export class Transcriber implements SequenceModel<SpeechRow, Transcript, Hearing> {
  constructor(
    private readonly model: SpeechModel,
    private readonly mel: LogMel,
    private readonly tokenizer: TextTokenizer,
    private readonly options: Pick<
      TranscriberFiles,
      'tokens' | 'mel' | 'alignment' | 'filterWidth' | 'name'
    >,
  ) {}

  start(rows: readonly SpeechRow[]): (Hearing | Error)[] {
    return rows.map((row) => {
      try {
        return this.started(row);
      } catch (cause) {
        return failureOf(cause);
      }
    });
  }

  /** @throws InvalidInputError for what this model can't follow */
  private started(row: SpeechRow): Hearing {
    const { tokens, alignment, name } = this.options;
    const prompt = row.prompt === '' ? [] : this.tokensOf(row.prompt);
    if ((prompt.length > 0 || row.followsText) && tokens.previous === undefined) {
      throw new InvalidInputError(
        `${name} has no token <|startofprev|>, so it follows on no text; leave out ` +
          'prompt and previousText',
      );
    }
    if (row.words && (alignment.length === 0 || !this.model.has(attentionsOf(alignment)))) {
      throw new InvalidInputError(
        `${name} gives no times of words: it needs alignment_heads in ` +
          'generation_config.json, and a decoder with the outputs cross_attentions.0, ..., as in the ' +
          'repositories named _timestamped; leave out words',
      );
    }
    return {
      row,
      prompt,
      frame: 0,
      language: row.language,
      window: undefined,
      attempt: 0,
      sampler: undefined,
      said: [],
      tokens: [],
      certainty: 0,
      silence: 0,
    };
  }

  /** Encodes as `get_prompt_ids` of Python's transformers. */
  private tokensOf(prompt: string): readonly number[] {
    try {
      this.tokenizer.checkText(prompt);
      return this.tokenizer.encodeWritten(` ${prompt}`);
    } catch (cause) {
      throw placed('prompt', cause);
    }
  }

  /** Encodes one audio's window, and writes a token of every other audio. */
  async step(hearings: readonly Hearing[]): Promise<SequenceResult<Transcript>[]> {
    const results: SequenceResult<Transcript>[] = [];
    let hasEncoded = false;
    for (const hearing of hearings) {
      const isNew = !hearing.window;
      if (isNew && hasEncoded) {
        results.push(PENDING);
        continue;
      }
      hasEncoded ||= isNew;
      try {
        hearing.window ??= await this.encoded(hearing);
        const logits = await (hearing.sampler ? this.next(hearing) : this.begin(hearing));
        results.push(this.take(hearing, logits));
      } catch (cause) {
        results.push(failureOf(cause));
      }
    }
    return results;
  }

  /** Encodes the next window, and recognises the audio's language in the first one. */
  private async encoded(hearing: Hearing): Promise<SpeechWindow> {
    const { row, frame } = hearing;
    const { window, hop } = this.options.mel;
    const samples = row.samples.subarray(frame * hop, frame * hop + window);
    const wrong = samples.find((sample) => !(Math.abs(sample) <= LOUDEST));
    if (wrong !== undefined) {
      throw new InvalidInputError(
        `The audio has the sample ${wrong}; give samples from -1 to 1, which are those of 16 bits ` +
          'divided by 32768',
      );
    }
    const encoded = await this.model.encode(this.mel.spectrogram(samples), window / hop);
    const languages = Object.keys(this.options.tokens.languages).map(Number);
    if (languages.length > 0 && hearing.language === undefined) {
      const [logits] = await this.model.begin(encoded, [this.options.tokens.start]);
      hearing.language = languages.reduce((best, each) =>
        logits![each]! > logits![best]! ? each : best,
      );
    }
    return encoded;
  }

  /** Reads what stands before the window's text; returns its first token's logits. */
  private async begin(hearing: Hearing): Promise<Float32Array> {
    const { row, prompt, said, language, window, attempt } = hearing;
    const { tokens, alignment, filterWidth } = this.options;
    const room = Math.floor(tokens.most / 2) - 1 - prompt.length;
    const before = [...prompt, ...(room > 0 ? said.slice(-room) : [])];
    const first = before.length > 0 ? [tokens.previous!, ...before] : [];
    const ids = [
      ...first,
      tokens.start,
      ...(language === undefined ? [] : [language]),
      ...row.task,
    ];
    const logits = await this.model.begin(window!, ids);
    window!.attention = row.words ? new Attention(alignment, filterWidth) : undefined;
    hearing.silence = Math.exp(logProbabilityOf(logits[first.length]!, tokens.silence));
    hearing.certainty = 0;
    hearing.tokens = [];
    hearing.sampler = samplerOf(row.temperatures[attempt]!);
    return logits.at(-1)!;
  }

  private next({ window, tokens }: Hearing): Promise<Float32Array> {
    return this.model.next(window!, tokens.at(-1)!);
  }

  private take(hearing: Hearing, logits: Float32Array): SequenceResult<Transcript> {
    const { tokens } = this.options;
    const { token, logprob } = nextToken(logits, hearing.tokens, tokens, hearing.sampler!);
    if (Number.isNaN(logprob)) {
      return new InvalidOutputError(
        'The model gave no usable number for the next token of this audio; a model in half precision ' +
          'may have overflowed: try one of float32',
      );
    }
    hearing.certainty += logprob;
    if (token !== tokens.end) {
      hearing.tokens.push(token);
      // The decoder has not read it yet.
      if (hearing.window!.length + 1 < tokens.most) {
        return PENDING;
      }
    }
    return this.ended(hearing);
  }

  private ended(hearing: Hearing): SequenceResult<Transcript> {
    const { row, frame, tokens, language, silence, attempt } = hearing;
    const { mel } = this.options;
    const code = language === undefined ? undefined : this.options.tokens.languages[language];
    const step = mel.hop / mel.sampleRate;
    const left = Math.min(Math.ceil(row.samples.length / mel.hop) - frame, mel.window / mel.hop);
    const { parts, heard } = partsOf(tokens, left, step, this.options.tokens.firstTime);
    const logprob = hearing.certainty / (tokens.length + 1);
    const isSilent = silence > SILENCE && logprob < UNSURE;
    const spoken = (isSilent ? [] : parts).map((part) => ({
      ...part,
      text: this.tokenizer.decode(part.tokens.filter((token) => this.isText(token))),
    }));
    const text = spoken.map((part) => part.text).join('');
    const compressionRatio = compressionOf(text.trim());
    const isPoor = !isSilent && (logprob < UNSURE || compressionRatio > REPETITIVE);
    hearing.sampler = undefined;
    if (isPoor && attempt + 1 < row.temperatures.length) {
      hearing.attempt++;
      return PENDING;
    }
    const temperature = row.temperatures[attempt]!;
    const window = {
      start: rounded(frame * step),
      temperature,
      logprob,
      compressionRatio,
      silence,
    };
    const times = hearing.window!.attention?.begins(Math.floor(left / 2));
    const heardParts = spoken.filter((part) => part.text.trim() !== '');
    hearing.window = undefined;
    hearing.attempt = 0;
    // A window whose times stand still would repeat forever.
    hearing.frame += heard > 0 && !isSilent ? heard : left;
    if (row.followsText) {
      const own = heardParts.flatMap((part) => part.tokens);
      hearing.said = temperature > FOLLOWED ? [] : [...hearing.said, ...own];
    }
    const piece: Transcript = {
      text,
      segments: heardParts.map((part) => ({
        text: part.text.trim(),
        start: rounded(frame * step + part.start),
        end: rounded(frame * step + part.end),
        ...(times && { words: this.wordsOf(part, times, frame * step, code) }),
        tokens: part.tokens,
        window,
      })),
      ...(code !== undefined && { language: code }),
      duration: row.samples.length / mel.sampleRate,
    };
    if (hearing.frame * mel.hop >= row.samples.length) {
      return last(piece);
    }
    return text === '' ? PENDING : piece;
  }

  private isText(token: number): boolean {
    return token < this.options.tokens.end;
  }

  /**
   * A token lasts from the time of the one before to its own, as in Python's transformers.
   *
   * @param times of the window's tokens, in the encoder's frames
   * @param offset seconds from the audio's beginning
   */
  private wordsOf(
    { tokens, place }: Part,
    times: readonly number[],
    offset: number,
    language: string | undefined,
  ): readonly TranscriptWord[] {
    const places = tokens.flatMap((token, i) => (this.isText(token) ? [place + i] : []));
    const ids = tokens.filter((token) => this.isText(token));
    // The decoder has not read the last token of a full window.
    const secondsAt = (at: number): number =>
      rounded(offset + (times[Math.min(at, times.length - 1)] ?? 0) * TIME_STEP);
    return wordsOf(ids, (some) => this.tokenizer.decode(some), language).map((word) => ({
      text: word.text.trim(),
      start: secondsAt(places[word.from]! - 1),
      end: secondsAt(places[word.to - 1]!),
    }));
  }
}

function rounded(seconds: number): number {
  return Math.round(seconds * 1000) / 1000;
}

function compressionOf(text: string): number {
  const bytes = Buffer.from(text);
  return bytes.length / deflateSync(bytes).length;
}

/** Tokens of a window; times in seconds from its beginning. */
interface Part {
  readonly tokens: readonly number[];
  /** Its first token's place. */
  readonly place: number;
  readonly start: number;
  readonly end: number;
}

/**
 * Parts of a window's text, which end with two times, and the frames that are done, as
 * `_retrieve_segment` of Python's transformers.
 *
 * @param left frames of the window with audio
 * @param step seconds of a frame
 */
export function partsOf(
  tokens: readonly number[],
  left: number,
  step: number,
  firstTime: number,
): { readonly parts: readonly Part[]; readonly heard: number } {
  const isTime = (token: number | undefined): boolean => token !== undefined && token >= firstTime;
  const secondsOf = (token: number): number => (token - firstTime) * TIME_STEP;
  const endsWithOneTime = isTime(tokens.at(-1)) && !isTime(tokens.at(-2)) && tokens.length > 1;
  const ends = tokens.flatMap((token, i) =>
    i > 0 && isTime(token) && isTime(tokens[i - 1]) ? [i] : [],
  );
  if (ends.length === 0) {
    const time = tokens.findLast(isTime);
    const end = time === undefined || time === firstTime ? left * step : secondsOf(time);
    return { parts: [{ tokens, place: 0, start: 0, end }], heard: left };
  }
  if (endsWithOneTime) {
    ends.push(tokens.length);
  }
  const parts = ends.map((end, i) => {
    const place = ends[i - 1] ?? 0;
    const own = tokens.slice(place, end);
    return { tokens: own, place, start: secondsOf(own[0]!), end: secondsOf(own.at(-1)!) };
  });
  // Silence follows a single time at the end. Otherwise the last part was cut, and is read again.
  const heard = endsWithOneTime ? left : Math.round(parts.at(-1)!.end / step);
  return { parts, heard };
}

/**
 * Token that the sampler takes among those that may follow, and its log-probability among these.
 * Times come in pairs and never go back, as in `WhisperTimeStampLogitsProcessor` of Python's
 * transformers.
 */
export function nextToken(
  given: Float32Array,
  tokens: readonly number[],
  { end, firstTime, latestBegin, suppressed, suppressedFirst }: SpeechTokens,
  sampler: Sampler,
): { readonly token: number; readonly logprob: number } {
  const logits = given.slice();
  const exclude = (from: number, to: number): void => void logits.fill(-Infinity, from, to);
  [...suppressed, ...(tokens.length === 0 ? suppressedFirst : [])].forEach((token) =>
    exclude(token, token + 1),
  );
  exclude(firstTime - 1, firstTime);
  const isAfterTime = tokens.length > 0 && tokens.at(-1)! >= firstTime;
  const isAfterTwo = isAfterTime && (tokens.length === 1 || tokens.at(-2)! >= firstTime);
  if (isAfterTwo) {
    exclude(firstTime, logits.length);
  } else if (isAfterTime) {
    exclude(0, end);
  }
  const latest = tokens.findLast((token) => token >= firstTime);
  if (latest !== undefined) {
    exclude(firstTime, isAfterTime && !isAfterTwo ? latest : latest + 1);
  }
  if (tokens.length === 0) {
    exclude(0, firstTime);
    exclude(firstTime + (latestBegin ?? logits.length) + 1, logits.length);
  }
  const times = logits.subarray(firstTime);
  const [text, time] = [highestOf(logits.subarray(0, firstTime)), highestOf(times)];
  // The logit of all times together; NaN if no time may follow.
  if (times[time]! - logProbabilityOf(times, time) > logits[text]!) {
    exclude(0, firstTime);
  }
  const token = sampler.next(logits);
  return { token, logprob: logProbabilityOf(logits, token) };
}

/** The same audio gets the same text each time. */
export function samplerOf(temperature: number): Sampler {
  return new Sampler(
    {
      temperature,
      seed: Math.round(temperature * 1000),
      topK: Infinity,
      topP: 1,
      minP: 0,
      repetitionPenalty: 1,
      presencePenalty: 0,
      frequencyPenalty: 0,
    },
    [],
  );
}

/** The library's own errors as they are. */
function failureOf(cause: unknown): Error {
  return cause instanceof ServingError ? cause : new Error(messageOf(cause), { cause });
}

/** Encoded window, with the decoder's cache. */
interface SpeechWindow {
  readonly hidden: Tensor;
  /** Keys and values of the decoder's tokens and the audio. */
  cache: Record<string, Tensor>;
  /** Tokens that the decoder has read. */
  length: number;
  /** Attention of the text's tokens, if words get times. */
  attention: Attention | undefined;
}

/** Encoder, and merged decoder with its cache, as optimum exports them. */
class SpeechModel {
  private readonly caches: readonly { readonly past: string; readonly present: string }[];

  /** @throws ServingLoadError for other models */
  constructor(
    private readonly encoder: SessionOfThread,
    private readonly decoder: SessionOfThread,
    name: string,
  ) {
    const pasts = decoder.inputNames.filter((input) => input.startsWith(PAST));
    this.caches = pasts.map((past) => ({ past, present: past.replace(PAST, 'present.') }));
    const needed = ['input_ids', 'encoder_hidden_states', 'use_cache_branch'];
    const missing = needed.filter((input) => !decoder.inputNames.includes(input));
    if (missing.length > 0 || pasts.length === 0) {
      throw new ServingLoadError(
        `The decoder of ${name} has no input ${missing.join(', ') || `${PAST}*`}; use an export of ` +
          "Whisper's encoder and merged decoder, as optimum makes them: encoder_model.onnx and " +
          'decoder_model_merged.onnx',
      );
    }
  }

  async encode(features: Float32Array, frames: number): Promise<SpeechWindow> {
    const input = new Tensor('float32', features, [1, features.length / frames, frames]);
    // Some exports also return attentions of 54 MB each.
    const { last_hidden_state: hidden } = await this.encoder.run({ input_features: input }, [
      'last_hidden_state',
    ]);
    return { hidden: hidden as Tensor, cache: {}, length: 0, attention: undefined };
  }

  /** True if the decoder returns these outputs. */
  has(outputs: readonly string[]): boolean {
    return outputs.every((output) => this.decoder.outputNames.includes(output));
  }

  /** Reads the tokens before the text; returns the logits after each one. */
  async begin(window: SpeechWindow, ids: readonly number[]): Promise<readonly Float32Array[]> {
    const empty = this.decoder.inputMetadata.flatMap((input) => {
      if (!input.isTensor || !input.name.startsWith(PAST)) {
        return [];
      }
      const [, heads, , width] = input.shape;
      return [[input.name, blankOf(input.type, [1, Number(heads), 0, Number(width)])] as const];
    });
    free(Object.values(window.cache));
    window.cache = Object.fromEntries(empty);
    window.length = 0;
    window.attention = undefined;
    const logits = await this.run(window, ids, this.caches);
    const size = logits.length / ids.length;
    return ids.map((_, i) => logits.subarray(i * size, (i + 1) * size));
  }

  /** Reads a token; returns the next one's logits. */
  next(window: SpeechWindow, id: number): Promise<Float32Array> {
    const ofText = this.caches.filter(({ past }) => past.includes('.decoder.'));
    return this.run(window, [id], ofText);
  }

  /** Returns the logits after each token. */
  private async run(
    window: SpeechWindow,
    ids: readonly number[],
    caches: SpeechModel['caches'],
  ): Promise<Float32Array> {
    const feeds = {
      ...window.cache,
      input_ids: new Tensor('int64', BigInt64Array.from(ids, BigInt), [1, ids.length]),
      encoder_hidden_states: window.hidden,
      use_cache_branch: new Tensor('bool', Uint8Array.of(Number(window.length > 0)), [1]),
    };
    const { attention } = window;
    const outputs = attention?.outputs ?? [];
    const fetches = ['logits', ...caches.map(({ present }) => present), ...outputs];
    const results = await this.decoder.run(feeds, fetches);
    attention?.add(results);
    free(caches.map(({ past }) => window.cache[past]!));
    caches.forEach(({ past, present }) => (window.cache[past] = results[present] as Tensor));
    window.length += ids.length;
    return floatsOf(results['logits'] as Tensor);
  }
}

const PAST = 'past_key_values.';

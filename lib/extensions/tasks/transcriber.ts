import { deflateSync } from 'node:zlib';
import type { InferenceSession } from 'onnxruntime-common';
import {
  last,
  PENDING,
  type SequenceModel,
  type SequenceResult,
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
import { likeliest as highestOf, logProbabilityOf } from './sampling.js';
import { textDecoder } from './text-tokenizer.js';

/** Speech as sent to the model's thread. */
export interface SpeechRow {
  /** Samples of one channel, at the model's rate. */
  readonly samples: Float32Array;
  /** Token of the language; undefined to recognise it. */
  readonly language: number | undefined;
  /** Tokens between the language and the text. */
  readonly task: readonly number[];
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
  /** The model's tokens, including times. */
  readonly tokens: readonly number[];
  /** Window of audio that has it. */
  readonly window: TranscriptWindow;
}

/** Window of audio, which the model reads as a whole. */
export interface TranscriptWindow {
  /** Seconds from the audio's beginning. */
  readonly start: number;
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
  readonly tokenizer: object;
  readonly tokenizerConfig: object;
  readonly mel: MelOptions;
  readonly tokens: SpeechTokens;
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
  const { name, encoder, decoder, tokenizer, tokenizerConfig, mel, tokens } = transcription;
  const session = { ...transcription.session, ...own };
  const [reader, writer, decode] = await Promise.all([
    sessionOf(name, await openable(name, encoder), session, sessions?.[1]),
    sessionOf(name, await openable(name, decoder), session, sessions?.[0]),
    textDecoder(tokenizer, tokenizerConfig),
  ]);
  checkFeatures(reader, mel, name);
  return new Transcriber(new SpeechModel(reader, writer, name), new LogMel(mel), decode, {
    tokens,
    mel,
  });
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
  /** Beginning of its window, in frames. */
  frame: number;
  language: number | undefined;
  window: SpeechWindow | undefined;
  /** Text of the window. */
  tokens: number[];
  /** Sum of its tokens' log-probabilities. */
  certainty: number;
  /** Probability of no speech. */
  silence: number;
}

/**
 * Thresholds of silence: the model finds no speech, and is unsure of its text. OpenAI's numbers.
 */
const SILENCE = { probability: 0.6, certainty: -1 };

/** Seconds per time token. */
const TIME_STEP = 0.02;

/**
 * Writes down speech by Whisper's models, window by window: each begins at the last sure time.
 * Follows https://github.com/openai/whisper/blob/main/whisper/transcribe.py, with the likeliest
 * token each time.
 */
export class Transcriber implements SequenceModel<SpeechRow, Transcript, Hearing> {
  constructor(
    private readonly model: SpeechModel,
    private readonly mel: LogMel,
    private readonly decode: (ids: readonly number[]) => string,
    private readonly options: Pick<TranscriberFiles, 'tokens' | 'mel'>,
  ) {}

  start(rows: readonly SpeechRow[]): Hearing[] {
    return rows.map((row) => ({
      row,
      frame: 0,
      language: row.language,
      window: undefined,
      tokens: [],
      certainty: 0,
      silence: 0,
    }));
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
        results.push(this.take(hearing, await (isNew ? this.begin(hearing) : this.next(hearing))));
      } catch (cause) {
        results.push(new Error(messageOf(cause), { cause }));
      }
    }
    return results;
  }

  /** Encodes the next window; returns its first token's logits. */
  private async begin(hearing: Hearing): Promise<Float32Array> {
    const { row, frame } = hearing;
    const { window, hop } = this.options.mel;
    const { start, languages, silence } = this.options.tokens;
    const samples = row.samples.subarray(frame * hop, frame * hop + window);
    const encoded = await this.model.encode(this.mel.spectrogram(samples), window / hop);
    hearing.tokens = [];
    const tokens = Object.keys(languages).map(Number);
    if (tokens.length > 0 && hearing.language === undefined) {
      const { next: logits } = await this.model.begin(encoded, [start]);
      hearing.language = tokens.reduce((best, each) =>
        logits[each]! > logits[best]! ? each : best,
      );
    }
    hearing.window = encoded;
    const before = hearing.language === undefined ? [start] : [start, hearing.language];
    const { first, next } = await this.model.begin(encoded, [...before, ...row.task]);
    hearing.silence = Math.exp(logProbabilityOf(first, silence));
    hearing.certainty = 0;
    return next;
  }

  private next({ window, tokens }: Hearing): Promise<Float32Array> {
    return this.model.next(window!, tokens.at(-1)!);
  }

  private take(hearing: Hearing, logits: Float32Array): SequenceResult<Transcript> {
    const { tokens } = this.options;
    const { token, logprob } = likeliest(logits, hearing.tokens, tokens);
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
    const { row, frame, tokens, language, silence } = hearing;
    const { mel } = this.options;
    const step = mel.hop / mel.sampleRate;
    const left = Math.min(Math.ceil(row.samples.length / mel.hop) - frame, mel.window / mel.hop);
    const { parts, heard } = partsOf(tokens, left, step, this.options.tokens.firstTime);
    const logprob = hearing.certainty / (tokens.length + 1);
    const isSilent = silence > SILENCE.probability && logprob < SILENCE.certainty;
    const spoken = (isSilent ? [] : parts).map((part) => ({
      ...part,
      text: this.decode(part.tokens.filter((token) => token < this.options.tokens.end)),
    }));
    const text = spoken.map((part) => part.text).join('');
    const window = {
      start: rounded(frame * step),
      logprob,
      compressionRatio: compressionOf(text.trim()),
      silence,
    };
    hearing.window = undefined;
    // A window whose times stand still would repeat forever.
    hearing.frame += heard > 0 && !isSilent ? heard : left;
    const code = language === undefined ? undefined : this.options.tokens.languages[language];
    const piece: Transcript = {
      text,
      segments: spoken
        .map((part) => ({
          text: part.text.trim(),
          start: rounded(frame * step + part.start),
          end: rounded(frame * step + part.end),
          tokens: part.tokens,
          window,
        }))
        .filter((segment) => segment.text !== ''),
      ...(code !== undefined && { language: code }),
      duration: row.samples.length / mel.sampleRate,
    };
    if (hearing.frame * mel.hop >= row.samples.length) {
      return last(piece);
    }
    return text === '' ? PENDING : piece;
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
    return { parts: [{ tokens, start: 0, end }], heard: left };
  }
  if (endsWithOneTime) {
    ends.push(tokens.length);
  }
  const parts = ends.map((end, i) => {
    const own = tokens.slice(ends[i - 1] ?? 0, end);
    return { tokens: own, start: secondsOf(own[0]!), end: secondsOf(own.at(-1)!) };
  });
  // Silence follows a single time at the end. Otherwise the last part was cut, and is read again.
  const heard = endsWithOneTime ? left : Math.round(parts.at(-1)!.end / step);
  return { parts, heard };
}

/**
 * Likeliest token that may follow, and its log-probability among these. Times come in pairs and
 * never go back, as in `WhisperTimeStampLogitsProcessor` of Python's transformers.
 */
export function likeliest(
  given: Float32Array,
  tokens: readonly number[],
  { end, firstTime, latestBegin, suppressed, suppressedFirst }: SpeechTokens,
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
  // NaN if no time may follow.
  const logprob = logProbabilityOf(times, time);
  // The logit of all times together is larger.
  return times[time]! - logprob > logits[text]!
    ? { token: firstTime + time, logprob }
    : { token: text, logprob: logProbabilityOf(logits, text) };
}

/** Encoded window, with the decoder's cache. */
interface SpeechWindow {
  readonly hidden: Tensor;
  /** Keys and values of the decoder's tokens and the audio. */
  cache: Record<string, Tensor>;
  /** Tokens that the decoder has read. */
  length: number;
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
    return { hidden: hidden as Tensor, cache: {}, length: 0 };
  }

  /** Reads the tokens before the text; returns the logits after the first and the last one. */
  async begin(
    window: SpeechWindow,
    ids: readonly number[],
  ): Promise<{ readonly first: Float32Array; readonly next: Float32Array }> {
    const empty = this.decoder.inputMetadata.flatMap((input) => {
      if (!input.isTensor || !input.name.startsWith(PAST)) {
        return [];
      }
      const [, heads, , width] = input.shape;
      return [[input.name, blankOf(input.type, [1, Number(heads), 0, Number(width)])] as const];
    });
    window.cache = Object.fromEntries(empty);
    window.length = 0;
    const logits = await this.run(window, ids, this.caches);
    const size = logits.length / ids.length;
    return { first: logits.subarray(0, size), next: logits.subarray(-size) };
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
    const fetches = ['logits', ...caches.map(({ present }) => present)];
    const results = await this.decoder.run(feeds, fetches);
    free(caches.map(({ past }) => window.cache[past]!));
    caches.forEach(({ past, present }) => (window.cache[past] = results[present] as Tensor));
    window.length += ids.length;
    return floatsOf(results['logits'] as Tensor);
  }
}

const PAST = 'past_key_values.';

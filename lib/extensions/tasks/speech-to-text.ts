import {
  type Batch,
  InvalidInputError,
  InvalidServingError,
  type ServingDefinition,
  ServingLoadError,
  type ServingOptions,
  type Steps,
} from '../../index.js';
import { asTask } from '../../encoding/task-kind.js';
import { languageCode } from '../../encoding/language-names.js';
import { flag, isRecord, type Rule, type Rules, whole } from '../../doors/options.js';
import { formatValue } from '../../doors/text.js';
import { scriptOfThread } from '../../encoding/entry-script.js';
import { AddedTokens } from './added-tokens.js';
import { AudioReader } from './audio.js';
import { warnOfUnfollowed } from './generation-settings.js';
import type { MelOptions } from './log-mel.js';
import { preparation, refused } from './python-settings.js';
import { needConfig, onnxFile, type OnnxFile, readConfig, type Repository } from './repository.js';
import {
  type LoadingFiles,
  ModelOfTask,
  ofSteps,
  refuseUnknown,
  type TaskModelOptions,
} from './task-model.js';
import { TextLimits } from './text-tokenizer.js';
import type { SpeechRow, SpeechTokens, TranscriberFiles, Transcript } from './transcriber.js';
import type { AlignmentHead } from './word-times.js';

/** Speech with its own options. */
export interface SpeechToWrite {
  /**
   * Bytes of a file of audio or video, or samples from -1 to 1 of one channel at 16,000 a second.
   */
  readonly audio: Uint8Array | Float32Array;
  /**
   * Spoken language: its code or English name, such as `en`, `en-US` or `English`.
   *
   * @default the serving's, or generation_config.json's, or else recognised in the first 30 seconds
   */
  readonly language?: string;
  /**
   * Writes in the language of the speech, or translates to English.
   *
   * @default generation_config.json's, or 'transcribe'
   */
  readonly task?: 'transcribe' | 'translate';
  /**
   * Text that each window of audio follows on, such as names in their spelling. At most half of the
   * model's tokens: 223 for Whisper.
   *
   * @default ''
   */
  readonly prompt?: string;
  /**
   * Lets a window follow on the text of those before it, too. Names keep their spelling, and so do
   * mistakes.
   *
   * @default false
   */
  readonly previousText?: boolean;
  /**
   * Temperature from 0, for the likeliest tokens, to 1; or several, which are tried in their order
   * while a window's text repeats itself or the model is unsure of it.
   *
   * @default the serving's
   */
  readonly temperature?: number | readonly number[];
  /**
   * Gives each segment its words with their times. Needs a decoder with attentions, as in
   * repositories named `_timestamped`.
   *
   * @default false
   */
  readonly words?: boolean;
}

/** Model of {@link speechToText}, in a thread or a process. */
export type SpeechModelPlace =
  | string
  | URL
  | (Omit<TaskModelOptions, 'file' | 'blockingLimit' | 'checkRows' | 'isolation'> & {
      /** @default 'thread' */
      readonly isolation?: 'thread' | 'process';
      /**
       * ONNX file of the encoder.
       *
       * @default 'onnx/encoder_model.onnx'
       */
      readonly encoder?: string;
      /**
       * ONNX file of the decoder, merged with the one that has a cache.
       *
       * @default 'onnx/decoder_model_merged.onnx'
       */
      readonly decoder?: string;
    });

/**
 * Options of {@link speechToText} and of any serving. `queue.cost` is the bytes of a call's
 * samples; `queue.maxCost` is 512 MiB by default, or more for a larger `maxSeconds`.
 */
export interface SpeechToTextOptions extends Omit<
  ServingOptions<Uint8Array | Float32Array | SpeechToWrite, Transcript>,
  'preprocess' | 'postprocess' | 'postprocessStream' | 'batchSize' | 'batchTimeout'
> {
  /** Encoder and decoder, and their tokenizer. */
  readonly model: SpeechModelPlace;
  /**
   * Most audios that a partition writes down at the same time, a token each in turn.
   *
   * @default 4
   */
  readonly batchSize?: number;
  /**
   * Language of calls without one, as a call names it.
   *
   * @default generation_config.json's, or the recognised one
   */
  readonly language?: string;
  /**
   * Temperatures of calls without their own, as a call gives them.
   *
   * @default [0, 0.2, 0.4, 0.6, 0.8, 1]
   */
  readonly temperature?: number | readonly number[];
  /**
   * Most bytes of a file.
   *
   * @default 26214400
   */
  readonly maxBytes?: number;
  /**
   * Most seconds of audio.
   *
   * @default 1800
   */
  readonly maxSeconds?: number;
}

const isString = (value: unknown): value is string => typeof value === 'string';

const isPath = (value: unknown): boolean => isString(value) && value !== '';

const isTemperature = (value: unknown): boolean =>
  typeof value === 'number' && value >= 0 && value <= 1;

const temperature: Rule = {
  check: (value) =>
    Array.isArray(value)
      ? value.length > 0 && value.length <= MOST_TEMPERATURES && value.every(isTemperature)
      : isTemperature(value),
  allowed: 'a number from 0 to 1, or a list of 1 to 16 such numbers',
};

const MOST_TEMPERATURES = 16;

const rules: Rules = {
  batchSize: whole(1, 1024),
  temperature,
  language: { check: isPath, allowed: "a language's code" },
  maxBytes: whole(1, 2 ** 31),
  maxSeconds: whole(1, 86_400),
};

const ofModel: Rules = {
  encoder: { check: isPath, allowed: 'a path' },
  decoder: { check: isPath, allowed: 'a path' },
  file: { check: () => false, allowed: 'nothing here: give encoder and decoder' },
  ...ofSteps,
};

/**
 * Serving that writes down speech, by a model of the Whisper family on a CPU: text with times,
 * whole or as a stream while it still reads. Audio of any length is read in windows of 30 seconds.
 *
 * Needs `@huggingface/tokenizers`, and the program `ffmpeg` for files.
 *
 * @throws InvalidServingError for an invalid option
 * @experimental
 */
export function speechToText(
  options: SpeechToTextOptions,
): ServingDefinition<Uint8Array | Float32Array | SpeechToWrite, Transcript> {
  const { batchSize = 4, maxBytes = 25 * 2 ** 20, maxSeconds = 1800 } = options;
  const own = new SpeechModelFiles(options);
  // A call alone always has room.
  const longest = maxBytes + maxSeconds * BYTES_OF_A_SECOND;
  const queue = {
    cost: bytesOfSamples,
    maxCost: Math.max(USUALLY_WAITING, longest),
    ...options.queue,
  };
  const reader = new AudioReader({
    owner: own.owner,
    bytes: maxBytes,
    seconds: maxSeconds,
    waiting: queue.cost === bytesOfSamples ? queue.maxCost : Math.max(USUALLY_WAITING, longest),
  });
  const prepare = own.forSteps(({ name, file, facts }) => {
    const transcription: TranscriberFiles = {
      ...facts,
      prompts: facts.prompts.limits,
      name,
      decoder: file,
      session: own.sessionOfSteps,
    };
    return { transcription };
  });
  const definition: ServingDefinition<
    Uint8Array | Float32Array | SpeechToWrite,
    Transcript,
    Transcript | Steps<Transcript>,
    unknown,
    Facts
  > = {
    ...own.others,
    queue,
    batchSize,
    model: {
      useFile: scriptOfThread('extensions/tasks/transcriber'),
      isolation: own.isolationOfSteps,
      prepare,
      sequence: {},
    },
    async preprocess(input, context) {
      const { tokens, tasks, mel, usual, prompts } = context.facts;
      const asked = readInput(own.owner, input);
      const { audio, language, task, prompt = '', previousText = false, words = false } = asked;
      prompts.checkCharacters(prompt.length);
      const code = language ?? options.language ?? usual.language;
      const row = {
        language: languageOf(own.owner, code, tokens),
        task: taskOf(own.owner, task ?? usual.task, tasks),
        prompt: prompt.trim(),
        followsText: previousText,
        temperatures: [asked.temperature ?? options.temperature ?? TEMPERATURES].flat(),
        words,
      };
      if (audio instanceof Float32Array) {
        reader.checkLength(audio.length, mel.sampleRate);
      }
      const samples =
        audio instanceof Float32Array
          ? audio
          : await reader.read(audio, mel.sampleRate, context.signal);
      return { batch: { ...row, samples } satisfies SpeechRow };
    },
    postprocess: (output) => (Array.isArray(output) ? joined(output) : output),
  };
  return asTask('speech-to-text', definition);
}

/** Temperatures of OpenAI's code. */
const TEMPERATURES = [0, 0.2, 0.4, 0.6, 0.8, 1];

/** Samples: 16,000, of 4 bytes each. */
const BYTES_OF_A_SECOND = 64_000;

/** Bytes of waiting samples: 140 minutes of audio. */
const USUALLY_WAITING = 512 * 2 ** 20;

function bytesOfSamples({ values = [] }: Batch): number {
  return (values as readonly SpeechRow[]).reduce((sum, { samples }) => sum + samples.byteLength, 0);
}

function joined(pieces: readonly Transcript[]): Transcript {
  return {
    ...pieces.at(-1)!,
    text: pieces
      .map(({ text }) => text)
      .join('')
      .trim(),
    segments: pieces.flatMap(({ segments }) => segments),
  };
}

/** @throws InvalidInputError for another input */
function readInput(owner: string, input: unknown): SpeechToWrite {
  const asked =
    input instanceof Uint8Array || input instanceof Float32Array ? { audio: input } : input;
  const { audio, ...others } = isRecord(asked) ? (asked as Partial<SpeechToWrite>) : {};
  const isAudio = audio instanceof Uint8Array || audio instanceof Float32Array;
  if (!isAudio || audio.length === 0) {
    throw new InvalidInputError(
      `${owner} takes the bytes of a file, samples, or { audio, language?, task?, prompt?, ` +
        `previousText?, temperature?, words? } with them, and was given ${formatValue(input)}`,
    );
  }
  refuseUnknown(owner, others, ['language', 'task', ...Object.keys(ofCalls)]);
  for (const [name, { check, allowed }] of Object.entries(ofCalls)) {
    const value = others[name as keyof typeof others];
    if (value !== undefined && !check(value)) {
      throw new InvalidInputError(
        `${owner} was given the ${name} ${formatValue(value)}; allowed is ${allowed}`,
      );
    }
  }
  return { audio, ...others };
}

/** Options of calls but the language and the task, which depend on the model. */
const ofCalls: Rules = {
  prompt: { check: isString, allowed: 'a text' },
  previousText: flag,
  temperature,
  words: flag,
};

function languageOf(
  owner: string,
  language: unknown,
  { languages }: SpeechTokens,
): number | undefined {
  if (language === undefined) {
    return undefined;
  }
  const own = Object.values(languages);
  // Whisper's models with one language have English.
  const codes = own.length > 0 ? own : ['en'];
  const code = isString(language) ? languageCode(language, codes) : undefined;
  if (code === undefined) {
    throw new InvalidInputError(
      `${owner} was given the language ${formatValue(language)}, and its model has ` +
        (own.length > 0 ? codes.join(', ') : 'en alone'),
    );
  }
  const token = Object.keys(languages).find((each) => languages[Number(each)] === code);
  return token === undefined ? undefined : Number(token);
}

function taskOf(owner: string, task: unknown = 'transcribe', tasks: Tasks): readonly number[] {
  if (task !== 'transcribe' && task !== 'translate') {
    throw new InvalidInputError(
      `${owner} was given the task ${formatValue(task)}; allowed is "transcribe" or "translate"`,
    );
  }
  const token = tasks[task];
  if (token === undefined && task === 'translate') {
    throw new InvalidInputError(`${owner}: its model cannot translate`);
  }
  return token === undefined ? [] : [token];
}

/** Tokens of the tasks; empty for a model with one language. */
type Tasks = Readonly<Partial<Record<'transcribe' | 'translate', number>>>;

interface Facts extends Pick<
  TranscriberFiles,
  'encoder' | 'tokenizer' | 'tokenizerConfig' | 'mel' | 'tokens' | 'alignment' | 'filterWidth'
> {
  readonly tasks: Tasks;
  readonly prompts: TextLimits;
  /** Defaults of calls, from generation_config.json. */
  readonly usual: Pick<SpeechToWrite, 'language' | 'task'>;
}

class SpeechModelFiles extends ModelOfTask<
  Uint8Array | Float32Array | SpeechToWrite,
  Transcript,
  Facts
> {
  private readonly own: Exclude<SpeechModelPlace, string | URL> | undefined;

  constructor(private readonly options: SpeechToTextOptions) {
    super('speechToText', options, rules, ofModel);
    const { model } = options;
    this.own = typeof model === 'string' || model instanceof URL ? undefined : model;
  }

  protected override readonly fileOption = 'decoder';

  /** @throws InvalidServingError for a reload with one file: the model has two */
  protected override candidatesIn({ file }: TaskModelOptions): readonly string[] {
    if (file !== undefined) {
      throw new InvalidServingError(
        `${this.owner} was given the ONNX file ${file}, and its model has an encoder and a decoder; ` +
          'give the folder or the repository of both',
      );
    }
    return [this.own?.decoder ?? 'onnx/decoder_model_merged.onnx'];
  }

  protected override otherModels({ encoder }: Facts): readonly OnnxFile[] {
    return [encoder];
  }

  /** The thread checks the model itself. */
  protected accept(): undefined {}

  protected async read({ repository, config, fetching }: LoadingFiles): Promise<Facts> {
    const generation = await needConfig(repository, 'generation_config.json', fetching);
    const { file, config: preprocessor } = await preparation(repository, 'speech', fetching);
    warnOfUnfollowed(generation, FOLLOWED, fetching);
    checkPreprocessor(repository, file, preprocessor);
    const tokenizer = await needConfig(repository, 'tokenizer.json', fetching);
    const added = new AddedTokens(tokenizer).ids;
    const tokens = {
      ...this.tokensIn(generation, config, repository),
      previous: added.get('<|startofprev|>'),
    };
    const filterWidth = numberIn(generation, config, 'median_filter_width') ?? 7;
    if (filterWidth % 2 !== 1) {
      throw refused(repository, 'config.json', 'median_filter_width', filterWidth);
    }
    if (this.options.language !== undefined) {
      languageOf(this.owner, this.options.language, tokens);
    }
    return {
      encoder: await onnxFile(
        await this.fetchOne(
          repository,
          [this.own?.encoder ?? 'onnx/encoder_model.onnx'],
          fetching,
          'encoder',
        ),
      ),
      tokenizer,
      tokenizerConfig: (await readConfig(repository, 'tokenizer_config.json', fetching)) ?? {},
      mel: melOf(preprocessor),
      tokens,
      prompts: new TextLimits({
        serving: this.options.name,
        maxTokens: Math.floor(tokens.most / 2) - 1,
        tooLong: 'refuse',
        canBeCut: false,
        specialTokens: [...added.keys()],
      }),
      alignment: alignmentIn(generation),
      filterWidth,
      tasks: tasksIn(generation),
      usual: usualIn(
        this.options.language === undefined ? generation : { ...generation, language: null },
        tokens,
        repository,
      ),
    };
  }

  private tokensIn(
    generation: Record<string, unknown>,
    config: Record<string, unknown>,
    { name }: Repository,
  ): Omit<SpeechTokens, 'previous'> {
    const number = (key: string): number => {
      const value = numberIn(generation, config, key);
      if (value === undefined) {
        throw new ServingLoadError(
          `The files of ${name} don't state ${key} (generation_config.json); use a model of the ` +
            'Whisper family with its files of transformers 4.31 or later',
        );
      }
      return value;
    };
    const languages = isRecord(generation['lang_to_id'])
      ? Object.entries(generation['lang_to_id'])
      : [];
    const latest = generation['max_initial_timestamp_index'];
    return {
      start: number('decoder_start_token_id'),
      end: number('eos_token_id'),
      silence: number('no_timestamps_token_id') - 1,
      firstTime: number('no_timestamps_token_id') + 1,
      latestBegin: typeof latest === 'number' ? latest : undefined,
      suppressed: numbersIn(generation['suppress_tokens']),
      suppressedFirst: numbersIn(generation['begin_suppress_tokens']),
      languages: Object.fromEntries(
        languages.map(([token, id]) => [Number(id), token.replaceAll(/[<|>]/g, '')]),
      ),
      most: number('max_length'),
    };
  }
}

function numberIn(
  generation: Record<string, unknown>,
  config: Record<string, unknown>,
  key: string,
): number | undefined {
  const value = generation[key] ?? config[key];
  return typeof value === 'number' ? value : undefined;
}

/** Heads as `[layer, head]`; none if they are not stated so. */
function alignmentIn({
  alignment_heads: heads,
}: Record<string, unknown>): readonly AlignmentHead[] {
  return Array.isArray(heads) && heads.every(isHead) ? heads : [];
}

function isHead(head: unknown): head is AlignmentHead {
  return Array.isArray(head) && head.length === 2 && head.every((each) => Number.isInteger(each));
}

function numbersIn(value: unknown): readonly number[] {
  return Array.isArray(value) ? value.filter((each) => typeof each === 'number' && each >= 0) : [];
}

function tasksIn({ task_to_id: tasks }: Record<string, unknown>): Tasks {
  return isRecord(tasks) ? tasks : {};
}

/**
 * Language and task that generation_config.json states, or forces by tokens.
 *
 * @throws ServingLoadError for a token or name with another meaning
 */
function usualIn(
  generation: Record<string, unknown>,
  { languages, firstTime }: SpeechTokens,
  repository: Repository,
): Facts['usual'] {
  const { language, task, forced_decoder_ids: pairs } = generation;
  const tasks = tasksIn(generation);
  const forced: readonly unknown[] = Array.isArray(pairs)
    ? pairs.map((pair: unknown) => [pair].flat()[1])
    : [];
  const own = Object.values(languages);
  const codes = own.length > 0 ? own : ['en'];
  const stated = isString(language) ? languageCode(language, codes) : undefined;
  if (isString(language) && stated === undefined) {
    throw refused(repository, GENERATION, 'language', language);
  }
  if (isString(task) && task !== 'transcribe' && task !== 'translate') {
    throw refused(repository, GENERATION, 'task', task);
  }
  const known: readonly unknown[] = [null, firstTime - 1, tasks.transcribe, tasks.translate];
  const others = forced.filter((id) => !known.includes(id));
  if (others.some((id) => languages[Number(id)] === undefined)) {
    throw refused(repository, GENERATION, 'forced_decoder_ids', pairs);
  }
  const translates =
    task === 'translate' || (tasks.translate !== undefined && forced.includes(tasks.translate));
  return {
    language: stated ?? languages[Number(others[0])],
    task: translates ? 'translate' : 'transcribe',
  };
}

const GENERATION = 'generation_config.json';

/** Keys of generation_config.json that the task follows. */
const FOLLOWED = [
  'alignment_heads',
  'begin_suppress_tokens',
  'eos_token_id',
  'forced_decoder_ids',
  'is_multilingual',
  'lang_to_id',
  'language',
  'max_initial_timestamp_index',
  'max_length',
  'median_filter_width',
  'no_timestamps_token_id',
  'prev_sot_token_id',
  'return_timestamps',
  'suppress_tokens',
  'task',
  'task_to_id',
];

/** @throws ServingLoadError for audio not prepared as Whisper's */
function checkPreprocessor(
  repository: Repository,
  file: string,
  config: Record<string, unknown>,
): void {
  const allowed: Readonly<Record<string, readonly unknown[]>> = {
    feature_extractor_type: ['WhisperFeatureExtractor'],
    padding_value: [0],
    padding_side: ['right'],
    dither: [0],
  };
  for (const [key, values] of Object.entries(allowed)) {
    const value = config[key] ?? undefined;
    if (value !== undefined && !values.includes(value)) {
      throw refused(repository, file, key, value);
    }
  }
}

/** Settings of preprocessor_config.json, or else Whisper's. */
function melOf(config: Record<string, unknown>): MelOptions {
  const number = (key: string, usual: number): number =>
    typeof config[key] === 'number' ? config[key] : usual;
  const sampleRate = number('sampling_rate', 16_000);
  return {
    bands: number('feature_size', 80),
    sampleRate,
    frame: number('n_fft', 400),
    hop: number('hop_length', 160),
    window: number('chunk_length', 30) * sampleRate,
  };
}

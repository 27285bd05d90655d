import {
  InvalidServingError,
  ServingLoadError,
  type ServingOptions,
  type ServingSignature,
  Tensor,
  type TensorSignature,
} from '../../index.js';
import { type AcceptedAxes } from '../../doors/models.js';
import { checkOptions, isRecord, oneOf, type Rules, whole } from '../../doors/options.js';
import { AddedTokens } from './added-tokens.js';
import { sentenceSettings } from './python-settings.js';
import { configIn, needFile } from './repository.js';
import { ModelOfTask, type LoadingFiles, type TaskOptions } from './task-model.js';
import {
  type PairTemplate,
  type TextFiles,
  TextLimits,
  type Tokens,
  type TooLong,
} from './text-tokenizer.js';
import {
  checkTokenizer,
  contentOf,
  idIn,
  tokenizerSettings,
  withFrame,
} from './tokenizer-settings.js';
import type { Tokenizing } from './tokenizing.js';

/** Largest batch of texts. */
export interface TextBatchSize {
  /**
   * Most texts in a batch.
   *
   * @default 64
   */
  readonly rows?: number;
  /**
   * Most tokens in a batch, padding included. A longer text runs alone.
   *
   * @default 512 on a CPU, otherwise 16384
   */
  readonly tokens?: number;
  /**
   * Milliseconds until 99 of 100 calls are to be answered, as in any serving's `batchSize`.
   *
   * @default no target
   * @experimental
   */
  readonly latencyTarget?: number;
}

/** Options of a task on texts and of any serving. */
export interface TextTaskOptions<Input, Output> extends Omit<
  TaskOptions<Input, Output>,
  'batchSize'
> {
  /**
   * Most texts of a batch, or an object. Texts of similar length share a batch.
   *
   * @default {}
   */
  readonly batchSize?: number | TextBatchSize;
  /**
   * Most tokens of a text, including special tokens and a pair's second text.
   *
   * @default the smallest limit in the model's files
   */
  readonly maxTokens?: number;
  /**
   * Refuses longer texts with a RequestTooLargeError, cuts them, or reads them in windows of
   * `maxTokens`: at most 64, each a row of its call. Longer pairs are refused.
   *
   * @default 'refuse'
   */
  readonly tooLong?: TooLong;
  /**
   * Tokens that neighbouring windows share, less than half of `maxTokens`.
   *
   * @default an eighth of `maxTokens`
   */
  readonly overlap?: number;
  /**
   * Refuses texts with the tokenizer's special tokens, such as `[SEP]`, with an InvalidInputError,
   * reads them as plain text, or lets the model read such tokens.
   *
   * @default 'refuse'
   */
  readonly specialTokens?: 'refuse' | 'text' | 'accept';
}

const rules: Rules = {
  maxTokens: whole(1, 2 ** 20),
  tooLong: oneOf('refuse', 'cut', 'window'),
  overlap: whole(0, 2 ** 19),
  specialTokens: oneOf('refuse', 'text', 'accept'),
};

const ofBatchSize: Rules = {
  rows: whole(1, 2 ** 20),
  tokens: whole(1, 2 ** 30),
  latencyTarget: { check: (value) => typeof value === 'number', allowed: 'milliseconds' },
};

/** True for a text that isn't empty. */
export function isText(value: unknown): value is string {
  return typeof value === 'string' && value !== '';
}

interface Parts<Own, Words> {
  readonly tokenizer: (files: TextFiles, limits: TextLimits, own: Own) => Promise<Words>;
  /** Reads other files, such as labels. */
  readonly facts: (files: TextFiles) => Promise<Own>;
  /** @throws InvalidServingError for another task's model */
  readonly output: (
    outputs: readonly TensorSignature[],
    facts: TextFacts<Own, Words>,
  ) => TensorSignature;
  /** Most tokens by default, if the model reads more. */
  readonly usual?: number;
  readonly isNeverCut?: boolean;
  readonly pair?: PairTemplate | undefined;
  readonly ofModel?: Rules;
}

export interface TextFacts<Own, Words = Tokenizing> {
  readonly name: string;
  readonly tokenizer: Words;
  readonly padding: Padding;
  readonly own: Own;
}

export class TextModel<Input, Output, Own, Words = Tokenizing> extends ModelOfTask<
  Input,
  Output,
  TextFacts<Own, Words>
> {
  constructor(
    task: string,
    private readonly options: TextTaskOptions<Input, Output>,
    own: Rules,
    private readonly parts: Parts<Own, Words>,
  ) {
    super(task, options, { ...rules, ...own }, parts.ofModel);
  }

  protected async read({ repository, config, fetching }: LoadingFiles) {
    const ofTokenizer = await tokenizerSettings(repository, fetching);
    const tokenizerFile = await needFile(repository, 'tokenizer.json', fetching);
    const given = configIn(repository, 'tokenizer.json', tokenizerFile);
    const tokenizerJson = withFrame(given, ofTokenizer);
    const sentences = await sentenceSettings(repository, fetching);
    const ofTexts = { tokenizerJson, tokenizerFile, ofTokenizer, sentences };
    const files = { repository, config, fetching, ...ofTexts, owner: this.owner };
    checkTokenizer(files);
    const { name, tooLong = 'refuse', specialTokens } = this.options;
    const maxTokens = this.maxTokensOf(files);
    const limits = new TextLimits({
      serving: name,
      maxTokens,
      tooLong,
      overlap: this.overlapOf(maxTokens),
      cutsBeginning: !this.parts.pair && cutsBeginning(files),
      canBeCut: !this.parts.isNeverCut,
      specialTokens: specialTokens === 'accept' ? [] : [...new AddedTokens(tokenizerJson).special],
      areText: specialTokens === 'text',
      pair: this.parts.pair,
    });
    const own = await this.parts.facts(files);
    return {
      name: repository.name,
      tokenizer: await this.parts.tokenizer(files, limits, own),
      padding: paddingOf(files),
      own,
    };
  }

  /** @throws InvalidServingError for half of a window or more, and without windows */
  private overlapOf(maxTokens: number): number {
    const { tooLong, overlap } = this.options;
    if (overlap !== undefined && (tooLong !== 'window' || 2 * overlap >= maxTokens)) {
      throw new InvalidServingError(
        tooLong === 'window'
          ? `${this.owner}: overlap is ${overlap}, and a window has ${maxTokens} tokens; give less than half`
          : `${this.owner}: overlap does nothing without tooLong: 'window'`,
      );
    }
    return overlap ?? Math.floor(maxTokens / 8);
  }

  get definition() {
    const batchSize = this.batchSizeOf(this.options.batchSize);
    return { ...this.others, batchSize, model: this.runner };
  }

  private batchSizeOf(size: number | TextBatchSize = {}): NonNullable<ServingOptions['batchSize']> {
    const { rows = 64, tokens, latencyTarget } = typeof size === 'number' ? { rows: size } : size;
    checkOptions(this.owner, { rows, tokens, latencyTarget }, ofBatchSize, 'batchSize.');
    const most = tokens ?? (this.isOnCpu ? 512 : 16_384);
    const of = (row: unknown): number => Math.min(most, (row as Encoded).input_ids.dims[1]!);
    return {
      rows,
      cost: { of, most, padded: true, similar: SIMILAR },
      latencyTarget,
    };
  }

  protected accept(signature: ServingSignature, facts: TextFacts<Own, Words>): AcceptedAxes {
    const unknown = signature.inputs.find(({ name }) => !Object.hasOwn(FILLERS, name));
    if (unknown || !signature.inputs.some(({ name }) => name === 'input_ids')) {
      const names = signature.inputs.map(({ name }) => name).join(', ');
      throw new InvalidServingError(
        `${this.owner} fills the inputs ${Object.keys(FILLERS).join(', ')}, and its model has ` +
          `${names}; use a model of this task, or write its preprocess by hand with defineServing`,
      );
    }
    return lengthAxes(signature, this.parts.output(signature.outputs ?? [], facts), facts.padding);
  }

  /** Limit of the option or the model's files; tokenizer.json's is often wrong. */
  private maxTokensOf({ repository, config, ofTokenizer, sentences }: TextFiles): number {
    const own = this.options.maxTokens;
    const positions = positionsOf(config);
    if (own !== undefined && positions !== undefined && own > positions) {
      throw new InvalidServingError(
        `${this.owner}: maxTokens is ${own}, and the model of ${repository.name} reads at most ` +
          `${positions} tokens`,
      );
    }
    const stated = [sentences.maxTokens, ofTokenizer['model_max_length'], positions].find(
      // Tokenizers without a limit state about 1e30.
      (limit) => typeof limit === 'number' && limit > 0 && limit <= MOST_TOKENS,
    ) as number | undefined;
    const { usual = Infinity } = this.parts;
    const most = own ?? Math.min(stated ?? Infinity, positions ?? Infinity, usual);
    if (most === Infinity) {
      throw new ServingLoadError(
        `The files of ${repository.name} don't state how many tokens the model reads; give the ` +
          'option maxTokens',
      );
    }
    return most;
  }
}

const MOST_TOKENS = 10_000_000;

/** Follows https://github.com/huggingface/transformers/blob/main/src/transformers/tokenization_utils_tokenizers.py */
function cutsBeginning({ ofTokenizer, tokenizerJson: { truncation } }: TextFiles): boolean {
  const direction = isRecord(truncation) ? truncation['direction'] : undefined;
  return /^left$/i.test(String(ofTokenizer['truncation_side'] ?? direction));
}

interface Padding {
  /** The model's padding token, by which its graph may find a text's end. */
  readonly ofModel: number | undefined;
  readonly ofTokenizer: number;
  /** Number of the padding's text. */
  readonly type: number;
  /** True for a left-padded model. */
  readonly isLeft: boolean;
}

function paddingOf({ config, ofTokenizer, tokenizerJson }: TextFiles): Padding {
  const { padding } = tokenizerJson;
  const stated = isRecord(padding) ? padding : {};
  const id = idIn(tokenizerJson, contentOf(ofTokenizer['pad_token']));
  const ofModel = numberIn(config['pad_token_id']);
  return {
    ofModel,
    ofTokenizer: ofModel ?? numberIn(id) ?? numberIn(stated['pad_id']) ?? 0,
    type: numberIn(ofTokenizer['pad_token_type_id']) ?? numberIn(stated['pad_type_id']) ?? 0,
    isLeft: ofTokenizer['padding_side'] === 'left' || stated['direction'] === 'Left',
  };
}

function numberIn(value: unknown): number | undefined {
  return typeof value === 'number' && value >= 0 ? value : undefined;
}

/**
 * Axes on which a batch's texts may differ in length, if any. A model without a mask can't tell
 * padding from text. With one, padding behind the text changes no token's output; but a pooling
 * graph may look for the padding token, or for the last place, where a left-padded model has its
 * last token.
 */
function lengthAxes(
  { inputs, outputs = [] }: ServingSignature,
  read: TensorSignature,
  { ofModel, ofTokenizer, type, isLeft }: Padding,
): AcceptedAxes {
  const isOpen = inputs.every(({ shape }) => shape.length === 2 && typeof shape[1] !== 'number');
  const isMasked = inputs.some(({ name }) => name === 'attention_mask');
  const isPerToken = read.shape.length > 2;
  if (!isOpen || !isMasked || (!isPerToken && (ofModel === undefined || isLeft))) {
    return { inputs: {}, outputs: {} };
  }
  const fills: Readonly<Record<string, number>> = { input_ids: ofTokenizer, token_type_ids: type };
  const axis = inputs[0]!.shape[1];
  const isCut = (each: TensorSignature): boolean =>
    each === read ? isPerToken : axis !== null && each.shape[1] === axis;
  const axisOf = ({ name, type: kind }: TensorSignature) => {
    const fill = fills[name] ?? 0;
    return [name, { variableAxis: 1, padWith: kind === 'int64' ? BigInt(fill) : fill }] as const;
  };
  const cut = outputs.filter(isCut).map(({ name }) => [name, { variableAxis: 1 }] as const);
  return { inputs: Object.fromEntries(inputs.map(axisOf)), outputs: Object.fromEntries(cut) };
}

/** Batches that may pass a text in favour of similar lengths. */
const SIMILAR = { overtaking: 32 };

/** Models whose positions begin behind the padding token's id. */
const OFFSET_POSITIONS = new Set(['roberta', 'xlm-roberta', 'camembert', 'mpnet', 'longformer']);

/** Models whose files name their positions so, by `attribute_map` of Python's transformers. */
const N_POSITIONS = new Set(['codegen', 'ctrl', 'gpt2', 'gpt_bigcode', 'gptj', 'openai-gpt']);

function positionsOf(config: Record<string, unknown>): number | undefined {
  const { model_type: type, pad_token_id: pad, max_position_embeddings: stated } = config;
  const most = stated ?? (N_POSITIONS.has(String(type)) ? config['n_positions'] : undefined);
  if (typeof most !== 'number' || most <= 0) {
    return undefined;
  }
  return OFFSET_POSITIONS.has(String(type)) ? most - (typeof pad === 'number' ? pad : 1) - 1 : most;
}

type Encoded = Readonly<Record<string, Tensor>> & { readonly input_ids: Tensor };

/** Numbers of each input that a text fills. */
const FILLERS: Readonly<Record<string, (tokens: Tokens) => readonly number[]>> = {
  input_ids: ({ ids }) => ids,
  attention_mask: ({ ids }) => ids.map(() => 1),
  token_type_ids: ({ types }) => types,
  position_ids: ({ ids }) => ids.map((_, at) => at),
};

/** Row of the model's inputs, or a row for each window. */
export function rowOf(tokens: Tokens, { inputs }: ServingSignature): Encoded {
  const { more = [] } = tokens;
  const dims = [1 + more.length, tokens.ids.length];
  const tensors = inputs.map(({ name, type }) => {
    const fill = FILLERS[name]!;
    const numbers = more.length === 0 ? fill(tokens) : [tokens, ...more].flatMap(fill);
    const tensor =
      type === 'int32'
        ? new Tensor('int32', Int32Array.from(numbers), dims)
        : new Tensor('int64', integersOf(numbers), dims);
    return [name, tensor] as const;
  });
  return Object.fromEntries(tensors) as Encoded;
}

/** Their low and high halves: numbers that become a BigInt each take ten times as long. */
function integersOf(numbers: readonly number[]): BigInt64Array {
  const halves = new Int32Array(2 * numbers.length);
  numbers.forEach((number, at) => {
    halves[2 * at] = number;
    halves[2 * at + 1] = Math.floor(number / 2 ** 32);
  });
  return new BigInt64Array(halves.buffer);
}

import {
  InvalidServingError,
  ServingLoadError,
  type ServingOptions,
  type ServingSignature,
  Tensor,
  type TensorSignature,
} from '../../index.js';
import { type AcceptedAxes } from '../../doors/models.js';
import { checkOptions, isRecord, type Rules, whole } from '../../doors/options.js';
import { AddedTokens } from './added-tokens.js';
import { sentenceSettings } from './python-settings.js';
import { configIn, needFile } from './repository.js';
import { ModelOfTask, type LoadingFiles, oneOf, type TaskOptions } from './task-model.js';
import { type TextFiles, TextLimits, type Tokens, type TooLong } from './text-tokenizer.js';
import {
  checkTokenizer,
  contentOf,
  idIn,
  tokenizerSettings,
  withFrame,
} from './tokenizer-settings.js';
import type { Tokenizing } from './tokenizing.js';

/** How large a batch of texts gets. */
export interface TextBatchSize {
  /**
   * The largest number of texts in a batch.
   *
   * @default 64
   */
  readonly rows?: number;
  /**
   * The largest number of tokens in a batch, padding included. A longer text runs alone.
   *
   * @default 512 on a CPU, otherwise 16384
   */
  readonly tokens?: number;
  /**
   * Milliseconds until 99 of 100 calls are to be answered, as in the `batchSize` of any serving.
   *
   * @default no target
   * @experimental
   */
  readonly latencyTarget?: number;
}

/** The options of a task on texts, beside those of any serving. */
export interface TextTaskOptions<Input, Output> extends Omit<
  TaskOptions<Input, Output>,
  'batchSize'
> {
  /**
   * How large a batch gets: its most texts, or an object. Texts of similar length share a batch.
   *
   * @default {}
   */
  readonly batchSize?: number | TextBatchSize;
  /**
   * The most tokens of a text, special tokens and the second text of a pair included.
   *
   * @default the smallest limit in the model's files
   */
  readonly maxTokens?: number;
  /**
   * Whether a text with more tokens is refused with a RequestTooLargeError, or cut.
   *
   * @default 'refuse'
   */
  readonly tooLong?: TooLong;
  /**
   * Whether a text with one of the tokenizer's special tokens, such as `[SEP]`, is refused with an
   * InvalidInputError, or the model reads it as that token.
   *
   * @default 'refuse'
   */
  readonly specialTokens?: 'refuse' | 'accept';
}

const rules: Rules = {
  maxTokens: whole(1, 2 ** 20),
  tooLong: oneOf('refuse', 'cut'),
  specialTokens: oneOf('refuse', 'accept'),
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

/** Supplied by each task on texts. */
interface Parts<Own, Words> {
  /** Makes the tokenizer. */
  readonly tokenizer: (files: TextFiles, limits: TextLimits, own: Own) => Promise<Words>;
  /** Reads the task's other files, such as labels. */
  readonly facts: (files: TextFiles) => Promise<Own>;
  /**
   * The output that the task reads.
   *
   * @throws InvalidServingError for a model of another task
   */
  readonly output: (
    outputs: readonly TensorSignature[],
    facts: TextFacts<Own, Words>,
  ) => TensorSignature;
  /** Most tokens by default, if the model reads more. */
  readonly usual?: number;
  readonly isNeverCut?: boolean;
  /** Rules of the task's own options of the model. */
  readonly ofModel?: Rules;
}

/** What belongs to a loaded version of a text model: what its files say, and its tokenizer. */
export interface TextFacts<Own, Words = Tokenizing> {
  /** The name of the repository, for errors. */
  readonly name: string;
  readonly tokenizer: Words;
  readonly padding: Padding;
  /** What the task has read besides. */
  readonly own: Own;
}

/** A text model that a serving fetches with its tokenizer when it starts. */
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
    const limits = new TextLimits({
      serving: name,
      maxTokens: this.maxTokensOf(files),
      tooLong,
      cutsBeginning: cutsBeginning(files),
      canBeCut: !this.parts.isNeverCut,
      specialTokens: specialTokens === 'accept' ? [] : [...new AddedTokens(tokenizerJson).special],
    });
    const own = await this.parts.facts(files);
    return {
      name: repository.name,
      tokenizer: await this.parts.tokenizer(files, limits, own),
      padding: paddingOf(files),
      own,
    };
  }

  /** The definition's options that the task takes as they are, and how it runs the model. */
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

  /** The limit of the option, or of the model's files: never that of tokenizer.json, often wrong. */
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

/** How shorter texts of a batch are padded. */
interface Padding {
  /** The model's padding token. Its graph may find a text's last token by it. */
  readonly ofModel: number | undefined;
  /** The tokenizer's padding token. */
  readonly ofTokenizer: number;
  /** The number of the padding's text. */
  readonly type: number;
  /** True for a model that was made for padding before its texts. */
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
 * The axes on which texts of one batch may differ in length; without them a batch has texts of one
 * length. A model without a mask can't tell padding from text. With a mask, each token's output is
 * the same with padding behind the text; but a graph that pools may look for the padding token
 * itself, or for the last place, where a model that is padded on the left has its last token.
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

/** Batches that may pass a text in favour of others of similar length. */
const SIMILAR = { overtaking: 32 };

/** These number positions from behind the padding token's id. */
const OFFSET_POSITIONS = new Set(['roberta', 'xlm-roberta', 'camembert', 'mpnet', 'longformer']);

function positionsOf(config: Record<string, unknown>): number | undefined {
  const { max_position_embeddings: most, model_type: type, pad_token_id: pad } = config;
  if (typeof most !== 'number' || most <= 0) {
    return undefined;
  }
  return OFFSET_POSITIONS.has(String(type)) ? most - (typeof pad === 'number' ? pad : 1) - 1 : most;
}

/** A row of a text model, by the names of its inputs. */
type Encoded = Readonly<Record<string, Tensor>> & { readonly input_ids: Tensor };

/** The numbers of each input that a text fills. */
const FILLERS: Readonly<Record<string, (tokens: Tokens, at: number) => number>> = {
  input_ids: ({ ids }, at) => ids[at]!,
  attention_mask: () => 1,
  token_type_ids: ({ types }, at) => types[at]!,
  position_ids: (_, at) => at,
};

/** The model's inputs for a text's tokens, as one row. */
export function rowOf(tokens: Tokens, { inputs }: ServingSignature): Encoded {
  const { length } = tokens.ids;
  const tensors = inputs.map(({ name, type }) => {
    const fill = FILLERS[name]!;
    const numbers = Array.from({ length }, (_, at) => fill(tokens, at));
    const tensor =
      type === 'int32'
        ? new Tensor('int32', Int32Array.from(numbers), [1, length])
        : new Tensor('int64', BigInt64Array.from(numbers, BigInt), [1, length]);
    return [name, tensor] as const;
  });
  return Object.fromEntries(tensors) as Encoded;
}

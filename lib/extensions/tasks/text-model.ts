import {
  InvalidServingError,
  ServingLoadError,
  type ServingOptions,
  type ServingSignature,
  Tensor,
} from '../../index.js';
import { checkOptions, isRecord, type Rules, whole } from '../../internal.js';
import { needConfig, readConfig } from './repository.js';
import { ModelOfTask, type LoadingFiles, oneOf, type TaskOptions } from './task-model.js';
import {
  type TextFiles,
  TextLimits,
  type TextTokenizer,
  type Tokens,
  type TooLong,
} from './text-tokenizer.js';

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

/** What differs between tasks. */
interface Parts<Own, Words> {
  /** Makes the tokenizer. */
  readonly tokenizer: (files: TextFiles, limits: TextLimits) => Promise<Words>;
  /** Reads what the task needs besides. */
  readonly facts: (files: TextFiles) => Promise<Own>;
  /** Most tokens by default, if the model reads more. */
  readonly usual?: number;
  readonly isNeverCut?: boolean;
  /** Rules of the task's own options of the model. */
  readonly ofModel?: Rules;
}

/** What belongs to a loaded version of a text model: what its files say, and its tokenizer. */
export interface TextFacts<Own, Words = TextTokenizer> {
  /** The name of the repository, for errors. */
  readonly name: string;
  readonly tokenizer: Words;
  /** What the task has read besides. */
  readonly own: Own;
}

/** A text model that a serving fetches with its tokenizer when it starts. */
export class TextModel<Input, Output, Own, Words = TextTokenizer> extends ModelOfTask<
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
    const ofTokenizer = (await readConfig(repository, 'tokenizer_config.json', fetching)) ?? {};
    const tokenizerJson = await needConfig(repository, 'tokenizer.json', fetching);
    const files = { repository, config, tokenizerJson, ofTokenizer, fetching };
    const { name, tooLong = 'refuse', specialTokens } = this.options;
    const limits = new TextLimits({
      serving: name,
      maxTokens: await this.maxTokensOf(files, ofTokenizer['model_max_length']),
      tooLong,
      canBeCut: !this.parts.isNeverCut,
      specialTokens: specialTokens === 'accept' ? [] : specialTokensIn(tokenizerJson),
    });
    return {
      name: repository.name,
      tokenizer: await this.parts.tokenizer(files, limits),
      own: await this.parts.facts(files),
    };
  }

  /** The definition's options that the task takes as they are, and how it runs the model. */
  get definition() {
    const model = {
      ...this.runner,
      inputs: { '*': { variableAxis: 1 } },
      outputs: { '*': { variableAxis: 1 } },
    };
    return { ...this.others, batchSize: this.batchSizeOf(this.options.batchSize), model };
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

  protected accept(signature: ServingSignature): undefined {
    const unknown = signature.inputs.find(({ name }) => !Object.hasOwn(FILLERS, name));
    if (unknown || !signature.inputs.some(({ name }) => name === 'input_ids')) {
      const names = signature.inputs.map(({ name }) => name).join(', ');
      throw new InvalidServingError(
        `${this.owner} fills the inputs ${Object.keys(FILLERS).join(', ')}, and its model has ` +
          `${names}; use a model of this task, or write its preprocess by hand with defineServing`,
      );
    }
  }

  /** The limit of the option, or of the model's files: never that of tokenizer.json, often wrong. */
  private async maxTokensOf(
    { repository, config, fetching }: TextFiles,
    ofTokenizer: unknown,
  ): Promise<number> {
    const own = this.options.maxTokens;
    const sentences = await readConfig(repository, 'sentence_bert_config.json', fetching);
    const positions = positionsOf(config);
    if (own !== undefined && positions !== undefined && own > positions) {
      throw new InvalidServingError(
        `${this.owner}: maxTokens is ${own}, and the model of ${repository.name} reads at most ` +
          `${positions} tokens`,
      );
    }
    const stated = [sentences?.['max_seq_length'], ofTokenizer, positions].find(
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

/** Those of a tokenizer.json. */
function specialTokensIn({ added_tokens: added }: Record<string, unknown>): readonly string[] {
  const tokens = Array.isArray(added) ? added.filter((token) => isRecord(token)) : [];
  return tokens.filter(({ special }) => special === true).map(({ content }) => String(content));
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

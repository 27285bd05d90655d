import {
  InvalidInputError,
  InvalidServingError,
  type ServingDefinition,
  ServingLoadError,
} from '../../index.js';
import { asTask, flag, formatValue, isRecord, type Rules } from '../../internal.js';
import {
  floatsOf,
  HIDDEN,
  normalized,
  outputOf,
  type Outputs,
  pool,
  type Pooling,
} from './outputs.js';
import { readConfig, readJsonFile } from './repository.js';
import { oneOf } from './task-model.js';
import { isText, rowOf, type TextFacts, TextModel, type TextTaskOptions } from './text-model.js';
import { type TextFiles, textTokenizer } from './text-tokenizer.js';

/** A text, with what holds for it alone. */
export interface TextToEmbed {
  /** Not empty. */
  readonly text: string;
  /** The name of a prompt that is put before the text. */
  readonly prompt?: string;
  /** The numbers of the vector, one of the option `dimensions`. */
  readonly dimensions?: number;
}

/** The meaning of a text. */
export interface Embedding {
  /** Of length 1 (L2), unless the serving doesn't normalise. */
  readonly vector: Float32Array;
  /** The tokens that the model read, special tokens included. */
  readonly tokens: number;
}

/** The options of {@link textEmbedding}, beside those of any serving. */
export interface TextEmbeddingOptions extends TextTaskOptions<string | TextToEmbed, Embedding> {
  /**
   * How the vectors of a text's tokens become one.
   *
   * @default as 1_Pooling/config.json says; without that file the model must have the output
   * `sentence_embedding`
   */
  readonly pooling?: Pooling;
  /**
   * Whether vectors get the length 1 (L2).
   *
   * @default as modules.json says, and true without that file
   */
  readonly normalize?: boolean;
  /**
   * Texts by name that a call may have put before its own, as models ask for that tell queries from
   * documents: `{ query: 'query: ', document: 'passage: ' }`.
   *
   * @default those of config_sentence_transformers.json
   */
  readonly prompts?: Readonly<Record<string, string>>;
  /**
   * The name of the prompt for calls that name none.
   *
   * @default that of config_sentence_transformers.json, if it has one
   */
  readonly defaultPrompt?: string;
  /**
   * How many numbers of the vector callers may ask for, for models whose first numbers are a vector
   * by themselves (Matryoshka).
   *
   * @default only all of them
   */
  readonly dimensions?: readonly number[];
}

/** What the model's files say about its vectors. */
interface Facts {
  /** Undefined if only the model itself can pool. */
  readonly pooling: Pooling | undefined;
  readonly normalizes: boolean;
  readonly prompts: Readonly<Record<string, string>>;
  readonly defaultPrompt: string | undefined;
}

type EmbeddingModel = TextModel<string | TextToEmbed, Embedding, Facts>;

const POOLINGS: readonly Pooling[] = ['mean', 'cls', 'last', 'max'];

const rules: Rules = {
  pooling: {
    ...oneOf(...POOLINGS),
    allowed: POOLINGS.map(formatValue).join(', '),
  },
  normalize: flag,
  prompts: {
    check: (value) => isRecord(value) && Object.values(value).every(isString),
    allowed: 'an object of texts by name',
  },
  defaultPrompt: { check: isString, allowed: 'the name of a prompt' },
  dimensions: {
    check: (value) =>
      Array.isArray(value) &&
      value.length > 0 &&
      value.every((size) => Number.isInteger(size) && size > 0),
    allowed: 'a list of whole numbers from 1 on',
  },
};

/**
 * A serving that turns texts into vectors of their meaning, as sentence-transformers does: texts of
 * similar length share a batch, and each gets its own vector.
 *
 * Needs `@huggingface/tokenizers`. Refuses to start if the model's files don't say how to pool.
 *
 * @throws InvalidServingError for an invalid option
 */
export function textEmbedding(
  options: TextEmbeddingOptions,
): ServingDefinition<string | TextToEmbed, Embedding> {
  const { dimensions } = options;
  const own: EmbeddingModel = new TextModel('textEmbedding', options, rules, {
    tokenizer: textTokenizer,
    facts: factsIn(options),
  });
  return asTask<Definition>('text-embedding', {
    warmUp: ['a text to warm up'],
    ...own.definition,
    preprocess(input, { signature, facts }) {
      const { text, prompt, dimensions: size } = asked(own.owner, input);
      if (size !== undefined && !dimensions?.includes(size)) {
        throw new InvalidInputError(
          `${own.owner} gives vectors of ` +
            `${dimensions?.join(' or ') ?? 'all their dimensions'}, and a call asks for ` +
            `${formatValue(size)} dimensions`,
        );
      }
      checkPooling(
        own,
        facts,
        signature!.outputs!.map(({ name }) => name),
      );
      const tokens = facts.tokenizer.encode(promptOf(own.owner, facts.own, prompt) + text);
      const batch = rowOf(tokens, signature!);
      return { batch, info: { tokens: batch.input_ids.dims[1]!, size } };
    },
    postprocess(outputs, { info: { tokens, size }, facts }) {
      const { pooling: mode, normalizes } = facts.own;
      const pooled = mode
        ? pool(floatsOf(outputOf(own.owner, outputs, ...HIDDEN)), tokens, mode)
        : Float32Array.from(floatsOf(outputs[POOLED]!));
      const vector = size === undefined ? pooled : pooled.slice(0, size);
      return { vector: normalizes ? normalized(vector) : vector, tokens };
    },
  });
}

type Definition = ServingDefinition<
  string | TextToEmbed,
  Embedding,
  Outputs,
  Info,
  TextFacts<Facts>
>;

/** What `postprocess` needs of a call. */
interface Info {
  readonly tokens: number;
  readonly size: number | undefined;
}

/** The output of a model that pools by itself. */
const POOLED = 'sentence_embedding';

function isString(value: unknown): value is string {
  return typeof value === 'string';
}

function asked(owner: string, input: string | TextToEmbed): TextToEmbed {
  const given: Partial<TextToEmbed> | null = typeof input === 'string' ? { text: input } : input;
  if (!isText(given?.text)) {
    throw new InvalidInputError(
      `${owner} takes a text that is not empty, or { text, prompt?, dimensions? }, and was given ` +
        formatValue(input),
    );
  }
  return { ...given, text: given.text };
}

function promptOf(owner: string, facts: Facts, name = facts.defaultPrompt): string {
  if (name === undefined) {
    return '';
  }
  if (!Object.hasOwn(facts.prompts, name)) {
    const names = Object.keys(facts.prompts).join(', ') || 'none';
    throw new InvalidInputError(
      `${owner} has no prompt ${formatValue(name)}; its prompts: ${names}`,
    );
  }
  return facts.prompts[name]!;
}

/** @throws InvalidServingError if nothing says how to pool */
function checkPooling(
  { owner }: EmbeddingModel,
  { own, name }: TextFacts<Facts>,
  outputs: readonly string[],
): void {
  if (!own.pooling && !outputs.includes(POOLED)) {
    throw new InvalidServingError(
      `${owner}: the files of ${name} don't say how the vectors of a text's tokens become one, and ` +
        'a wrong guess gives useless vectors. Look at the model card, and give the option pooling: ' +
        POOLINGS.map(formatValue).join(', '),
    );
  }
}

/** Reads the files of sentence-transformers. Options take precedence. */
function factsIn(options: TextEmbeddingOptions) {
  return async ({ repository, fetching }: TextFiles): Promise<Facts> => {
    const modules = await readJsonFile(repository, 'modules.json', fetching);
    const types = Array.isArray(modules)
      ? modules.map((each: unknown) => (isRecord(each) ? String(each['type']) : ''))
      : undefined;
    const other = types?.find((type) => !/\.(Transformer|Pooling|Normalize)$/.test(type));
    if (other !== undefined) {
      throw new ServingLoadError(
        `${repository.name} has a step that the ONNX file lacks, ${other}; use another export`,
      );
    }
    const prompts = await readConfig(repository, 'config_sentence_transformers.json', fetching);
    const stated = prompts?.['prompts'];
    const byDefault = prompts?.['default_prompt_name'];
    return {
      pooling: options.pooling ?? poolingIn(await readConfig(repository, POOLING, fetching)),
      normalizes:
        options.normalize ?? (!types || types.some((type) => type.endsWith('.Normalize'))),
      prompts: options.prompts ?? (isRecord(stated) ? (stated as Record<string, string>) : {}),
      defaultPrompt: options.defaultPrompt ?? (isString(byDefault) ? byDefault : undefined),
    };
  };
}

const POOLING = '1_Pooling/config.json';

/** Our names of the modes in 1_Pooling/config.json. */
const MODES: Readonly<Record<string, Pooling>> = {
  pooling_mode_mean_tokens: 'mean',
  pooling_mode_cls_token: 'cls',
  pooling_mode_lasttoken: 'last',
  pooling_mode_max_tokens: 'max',
};

/** Newer files name one mode; older ones have a flag for each. */
const NAMES: Readonly<Record<string, Pooling>> = {
  mean: 'mean',
  cls: 'cls',
  lasttoken: 'last',
  max: 'max',
};

/** Undefined if the file is missing, or names several modes or one that we don't have. */
function poolingIn(config: Record<string, unknown> | undefined): Pooling | undefined {
  const named = config?.['pooling_mode'];
  if (isString(named)) {
    return Object.hasOwn(NAMES, named) ? NAMES[named] : undefined;
  }
  const modes = Object.entries(config ?? {}).filter(
    ([name, value]) => name.startsWith('pooling_mode_') && value === true,
  );
  const [mode, ...others] = modes.map(([name]) => MODES[name]);
  return others.length === 0 ? mode : undefined;
}

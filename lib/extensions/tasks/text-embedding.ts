import {
  InvalidInputError,
  InvalidOutputError,
  InvalidServingError,
  type ServingDefinition,
  ServingLoadError,
  type ServingSignature,
  type TensorSignature,
} from '../../index.js';
import { asTask } from '../../encoding/task-kind.js';
import { flag, isRecord, oneOf, type Rules } from '../../doors/options.js';
import { formatValue } from '../../doors/text.js';
import { AddedTokens } from './added-tokens.js';
import {
  finite,
  floatsOf,
  HIDDEN,
  meanOf,
  normalized,
  otherModel,
  outputOf,
  type Outputs,
  pool,
  type Pooling,
  type PoolingMode,
} from './outputs.js';
import { modelSettings, poolingSettings } from './python-settings.js';
import { readConfig, readJsonFile } from './repository.js';
import { refuseUnknown } from './task-model.js';
import { isText, rowOf, type TextFacts, TextModel, type TextTaskOptions } from './text-model.js';
import type { TextFiles } from './text-tokenizer.js';
import { tokenizing, withTokens } from './tokenizing.js';

/** Text with its own options. */
export interface TextToEmbed {
  /** Text, not empty. */
  readonly text: string;
  /**
   * Name of a prompt to put before the text. Of several names, it is the first that the model has;
   * a model without prompts then puts nothing.
   */
  readonly prompt?: string | readonly string[];
  /** Numbers of the vector, one of the option `dimensions`. */
  readonly dimensions?: number;
}

/** Meaning of a text. */
export interface Embedding {
  /** Vector of length 1 (L2), unless the serving doesn't normalise. */
  readonly vector: Float32Array;
  /** Tokens that the model read, including special tokens. */
  readonly tokens: number;
  /** Number of windows, if several: the vector is their mean, by the tokens that each adds. */
  readonly windows?: number;
}

/** Options of {@link textEmbedding} and of any serving. */
export interface TextEmbeddingOptions extends TextTaskOptions<string | TextToEmbed, Embedding> {
  /**
   * Pooling of a text's token vectors into one.
   *
   * @default as 1_Pooling/config.json says; without it the model needs the output
   * `sentence_embedding`
   */
  readonly pooling?: Pooling;
  /**
   * Scales vectors to length 1 (L2).
   *
   * @default as modules.json says, or else true
   */
  readonly normalize?: boolean;
  /**
   * Texts by name that a call may put before its own, to tell queries from documents: `{ query:
   * 'query: ', document: 'passage: ' }`.
   *
   * @default config_sentence_transformers.json's
   */
  readonly prompts?: Readonly<Record<string, string>>;
  /**
   * Name of the prompt for calls without one.
   *
   * @default config_sentence_transformers.json's, if any
   */
  readonly defaultPrompt?: string;
  /**
   * Vector sizes that callers may ask for, if the first numbers are a vector by themselves
   * (Matryoshka).
   *
   * @default only all numbers
   */
  readonly dimensions?: readonly number[];
}

interface Facts {
  /** Undefined if only the model can pool. */
  readonly pooling: readonly PoolingMode[] | undefined;
  readonly normalizes: boolean;
  /** True if tokens of prompts are not pooled. */
  readonly skipsPrompt: boolean;
  /** Modes in the pooling's file, for an error; undefined if it names none. */
  readonly otherPooling: string | undefined;
  /** Step behind the model that only its graph can have. */
  readonly step: string | undefined;
  /** Numbers of the vector behind that step. */
  readonly dense: number | undefined;
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
 * Serving that turns texts into vectors of their meaning, as sentence-transformers does. Texts of
 * similar length share a batch.
 *
 * Needs `@huggingface/tokenizers`. Refuses to start if the model's files don't say how to pool.
 *
 * @throws InvalidServingError for an invalid option
 */
export function textEmbedding(
  options: TextEmbeddingOptions,
): ServingDefinition<string | TextToEmbed, Embedding> {
  const { dimensions = [] } = options;
  const own: EmbeddingModel = new TextModel('textEmbedding', options, rules, {
    tokenizer: (files, limits) => tokenizing(files, limits),
    facts: factsIn(options),
    output: (outputs, facts) => readVectors(own.owner, outputs, facts, options),
  });
  return asTask<Definition>('text-embedding', {
    warmUp: ['a text to warm up'],
    ...own.definition,
    preprocess(input, context) {
      const { signature, facts } = context;
      const { text, prompt, dimensions: size } = asked(own.owner, input);
      const width = widthOf(signature!, facts.own);
      const isListed = size === undefined || size === width || dimensions.includes(size);
      if (!isListed && (width !== undefined || dimensions.length > 0)) {
        const sizes = [...new Set([...dimensions, ...(width === undefined ? [] : [width])])];
        throw new InvalidInputError(
          `${own.owner} gives vectors of ${sizes.join(' or ')}, and a call asks for ` +
            `${formatValue(size)} dimensions`,
        );
      }
      const before = promptOf(own.owner, facts.own, prompt);
      const isSkipped = facts.own.skipsPrompt && before !== '';
      const skipped = isSkipped ? facts.tokenizer.lengthBefore(before) : 0;
      return withTokens(facts.tokenizer.encode(context, text, before), (tokens) => ({
        batch: rowOf(tokens, signature!),
        info: { tokens: tokens.ids.length, added: tokens.added, size, skipped },
      }));
    },
    postprocess(outputs, { info: { tokens, added = [1], size, skipped }, facts }) {
      const { pooling: modes = ['mean'], normalizes } = facts.own;
      const output = outputOf(own.owner, outputs, POOLED, ...HIDDEN);
      const values = finite(own.owner, floatsOf(output));
      if (output.dims.length > 2 && output.dims[1] !== tokens) {
        throw new InvalidOutputError(
          `${own.owner}: its model gave ${output.dims[1]} vectors for the ${tokens} tokens of a ` +
            'text; use a model with a vector for each token, or for the text',
        );
      }
      const each = values.length / added.length;
      const pooled = meanOf(
        added.map((_, i) => {
          const ofWindow = values.subarray(i * each, (i + 1) * each);
          return output.dims.length > 2
            ? pooledBy(own.owner, ofWindow, tokens, skipped, modes)
            : Float32Array.from(ofWindow);
        }),
        added,
      );
      if (
        size !== undefined &&
        !(size === pooled.length || (size < pooled.length && dimensions.includes(size)))
      ) {
        throw new InvalidInputError(
          `${own.owner} gives vectors of ${pooled.length}, and a call asks for ${size} dimensions`,
        );
      }
      const vector = pooled.slice(0, size);
      return {
        vector: normalizes ? normalized(vector) : vector,
        tokens: tokens * added.length,
        ...(added.length > 1 && { windows: added.length }),
      };
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

interface Info {
  /** Tokens of a window. */
  readonly tokens: number;
  /** Tokens that each window adds, if there are several. */
  readonly added: readonly number[] | undefined;
  readonly size: number | undefined;
  readonly skipped: number;
}

/**
 * Vectors of the modes, one behind the other; after a skipped prompt, `cls` is the text's first
 * token.
 */
function pooledBy(
  owner: string,
  values: Float32Array,
  tokens: number,
  skipped: number,
  modes: readonly PoolingMode[],
): Float32Array {
  if (skipped >= tokens && modes.some((mode) => mode !== 'last')) {
    throw new InvalidInputError(
      `${owner}: the prompt leaves no token of the text, of the ${tokens} that the model reads; ` +
        'shorten the prompt, or raise maxTokens',
    );
  }
  const vectors = modes.map((mode) => pool(values, tokens, mode, skipped));
  return vectors.length === 1
    ? vectors[0]!
    : Float32Array.from(vectors.flatMap((each) => [...each]));
}

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
  refuseUnknown(owner, given, ['text', 'prompt', 'dimensions']);
  return { ...given, text: given.text };
}

function promptOf(
  owner: string,
  { prompts, defaultPrompt }: Facts,
  given: string | readonly string[] | undefined = defaultPrompt,
): string {
  const names = Object.keys(prompts);
  if (given === undefined || (Array.isArray(given) && names.length === 0)) {
    return '';
  }
  const found = [given].flat().find((name) => names.includes(name));
  if (found === undefined) {
    throw new InvalidInputError(
      `${owner} has no prompt ${formatValue(given)}; its prompts: ${names.join(', ') || 'none'}`,
    );
  }
  return prompts[found]!;
}

/** Output with a text's vector if the graph pools, or else its tokens'. */
function vectorsIn(outputs: readonly TensorSignature[]): TensorSignature | undefined {
  const named = [POOLED, ...HIDDEN].flatMap(
    (name) => outputs.find((each) => each.name === name) ?? [],
  );
  const [only, ...others] = outputs;
  return named[0] ?? (others.length === 0 && only?.name !== 'logits' ? only : undefined);
}

/** Width of a text's vector, if stated. */
function widthOf(
  { outputs = [] }: Pick<ServingSignature, 'outputs'>,
  { pooling }: Facts,
): number | undefined {
  const shape = vectorsIn(outputs)?.shape ?? [];
  const width = shape.at(-1);
  const parts = shape.length > 2 ? (pooling?.length ?? 1) : 1;
  return typeof width === 'number' ? parts * width : undefined;
}

/**
 * @throws InvalidServingError for another task's model, or if nothing says how to pool
 * @throws ServingLoadError for a step that the file lacks
 */
function readVectors(
  owner: string,
  outputs: readonly TensorSignature[],
  { name, own }: TextFacts<Facts>,
  options: TextEmbeddingOptions,
): TensorSignature {
  const { pooling, otherPooling, prompts, skipsPrompt, dense, step } = own;
  const output = vectorsIn(outputs);
  const rank = output?.shape.length;
  const width = widthOf({ outputs }, own);
  const isPooled = rank === 2 && !HIDDEN.includes(output!.name);
  if (!output || !(isPooled || (rank === 3 && output.name !== POOLED))) {
    const reads =
      'vectors, such as last_hidden_state [batch,tokens,size] or sentence_embedding [batch,size]';
    throw otherModel(owner, reads, outputs);
  }
  const missing = options.dimensions?.find((size) => width !== undefined && size > width);
  if (missing !== undefined) {
    throw new InvalidServingError(
      `${owner}: dimensions has ${missing}, and the vectors of ${name} have ${width} numbers; leave ` +
        'it out',
    );
  }
  if (isPooled) {
    if (options.pooling !== undefined) {
      const advice = 'its graph pools by itself; leave out the option pooling';
      throw otherModel(owner, 'the vectors of tokens, with the option pooling', outputs, advice);
    }
    if (skipsPrompt && Object.keys(prompts).length > 0) {
      throw lacking(name, 'pooling without the prompt (include_prompt)');
    }
    if (dense !== undefined && width !== undefined && width !== dense) {
      throw lacking(name, `a dense layer to ${dense} numbers`);
    }
    return output;
  }
  if (step !== undefined) {
    throw lacking(name, step);
  }
  if (!pooling) {
    throw new InvalidServingError(
      `${owner}: the files of ${name} ` +
        (otherPooling === undefined
          ? "don't say how the vectors of a text's tokens become one, and "
          : `ask for ${otherPooling}, which this task does not have, and `) +
        'a wrong guess gives useless vectors. Look at the model card, and give the option pooling: ' +
        POOLINGS.map(formatValue).join(', '),
    );
  }
  return output;
}

function lacking(name: string, step: string): ServingLoadError {
  return new ServingLoadError(
    `${name} has a step that the ONNX file lacks, ${step}; use another export`,
  );
}

/** Reads the files of sentence-transformers; options take precedence. */
function factsIn(options: TextEmbeddingOptions) {
  return async ({ repository, fetching, tokenizerJson }: TextFiles): Promise<Facts> => {
    const steps = stepsIn(await readJsonFile(repository, 'modules.json', fetching));
    const poolingStep = steps?.find(({ type }) => type.endsWith('.Pooling'));
    const pooling = await poolingSettings(repository, poolingStep?.path || '1_Pooling', fetching);
    const other = steps?.findLast(
      ({ type }) => !/^sentence_transformers\..*\b(Transformer|Pooling|Normalize)$/.test(type),
    );
    const dense = other?.type.endsWith('.Dense')
      ? await readConfig(repository, `${other.path}/config.json`, fetching)
      : undefined;
    const width = dense?.['out_features'];
    const settings = await modelSettings(repository, fetching);
    const stated = settings['prompts'];
    const byDefault = settings['default_prompt_name'];
    const prompts = options.prompts ?? (isRecord(stated) ? (stated as Record<string, string>) : {});
    const defaultPrompt = options.defaultPrompt ?? (isString(byDefault) ? byDefault : undefined);
    if (defaultPrompt !== undefined && !Object.hasOwn(prompts, defaultPrompt)) {
      throw new ServingLoadError(
        `The default prompt of ${repository.name} is ${formatValue(defaultPrompt)}, and its prompts ` +
          `are ${Object.keys(prompts).join(', ') || 'none'}; give the options prompts and defaultPrompt`,
      );
    }
    const special = [...new AddedTokens(tokenizerJson).special];
    const split = Object.entries(prompts).find(([, prompt]) =>
      special.some((token) => prompt.includes(token)),
    );
    if (split && options.specialTokens === 'text') {
      throw new ServingLoadError(
        `The prompt ${formatValue(split[0])} of ${repository.name} has special tokens, which the option ` +
          "specialTokens: 'text' would read as plain text; give 'refuse' or 'accept'",
      );
    }
    return {
      pooling: options.pooling ? [options.pooling] : poolingIn(pooling),
      otherPooling: (pooling && modesIn(pooling).join(' and ')) || undefined,
      skipsPrompt: pooling?.['include_prompt'] === false,
      normalizes:
        options.normalize ?? (!steps || steps.at(-1)?.type.endsWith('.Normalize') === true),
      step: other?.type,
      dense: typeof width === 'number' ? width : undefined,
      prompts,
      defaultPrompt,
    };
  };
}

interface Step {
  readonly type: string;
  readonly path: string;
}

function stepsIn(modules: unknown): readonly Step[] | undefined {
  return Array.isArray(modules)
    ? modules
        .filter((each) => isRecord(each))
        .map(({ type, path }) => ({ type: String(type), path: isString(path) ? path : '' }))
    : undefined;
}

/** Our names of the modes: newer files name them, older ones have flags, in this order. */
const MODES: ReadonlyMap<string, PoolingMode> = new Map([
  ['cls', 'cls'],
  ['max', 'max'],
  ['mean', 'mean'],
  ['mean_sqrt_len_tokens', 'mean-sqrt'],
  ['weightedmean', 'weighted-mean'],
  ['lasttoken', 'last'],
  ['pooling_mode_cls_token', 'cls'],
  ['pooling_mode_max_tokens', 'max'],
  ['pooling_mode_mean_tokens', 'mean'],
  ['pooling_mode_mean_sqrt_len_tokens', 'mean-sqrt'],
  ['pooling_mode_weightedmean_tokens', 'weighted-mean'],
  ['pooling_mode_lasttoken', 'last'],
]);

/** Undefined without a mode, or with an unknown one. */
function poolingIn(config: Record<string, unknown> = {}): readonly PoolingMode[] | undefined {
  const names = modesIn(config);
  const modes = names.flatMap((name) => MODES.get(name) ?? []);
  return names.length > 0 && modes.length === names.length ? modes : undefined;
}

function modesIn(config: Record<string, unknown>): readonly string[] {
  const { pooling_mode: named } = config;
  if (named !== undefined) {
    return [named].flat().map(String);
  }
  const order = [...MODES.keys()];
  const flags = Object.keys(config).filter(
    (name) => name.startsWith('pooling_mode_') && config[name] === true,
  );
  return flags.toSorted((one, other) => order.indexOf(one) - order.indexOf(other));
}

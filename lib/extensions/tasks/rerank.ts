import {
  InvalidInputError,
  InvalidOutputError,
  type ServingDefinition,
  type Tensor,
  type TensorSignature,
} from '../../index.js';
import { asTask } from '../../encoding/task-kind.js';
import { oneOf, type Rules } from '../../doors/options.js';
import { formatValue } from '../../doors/text.js';
import {
  finite,
  floatsOf,
  otherModel,
  outputOf,
  type Outputs,
  readOutput,
  sigmoid,
} from './outputs.js';
import { pairsOf, tokenizingPairs } from './pairs.js';
import { activationIn } from './python-settings.js';
import { refuseUnknown } from './task-model.js';
import { isText, type TextFacts, TextModel, type TextTaskOptions } from './text-model.js';
import type { PairTemplate, TextFiles } from './text-tokenizer.js';

/** Query, and documents to order by it. */
export interface DocumentsToRank {
  /** Text that documents are to answer; not empty. */
  readonly query: string;
  /** Texts, at least one, not empty. */
  readonly documents: readonly string[];
  /**
   * Number of the best documents in the reply.
   *
   * @default all
   */
  readonly top?: number;
}

/** Document with its place in the call. */
export interface RankedDocument {
  /** Place in the call's list, from 0 on. */
  readonly index: number;
  /** Score of its answer to the query. */
  readonly score: number;
  /** Tokens that the model read for it, including the query and special tokens. */
  readonly tokens: number;
}

/** Options of {@link rerank} and of any serving. */
export interface RerankOptions extends TextTaskOptions<DocumentsToRank, readonly RankedDocument[]> {
  /**
   * Gives scores from 0 to 1, or the model's own numbers, in the same order. With two labels, the
   * second means that the document answers the query: its probability, or how much larger its
   * number is.
   *
   * @default 'sigmoid'
   */
  readonly scores?: 'sigmoid' | 'raw';
  /**
   * Text that the model reads for a document, with `{query}` and behind it `{document}` in their
   * places. Rerankers made of language models need it, with the special tokens of their model card.
   *
   * @default the tokenizer's form of pairs
   */
  readonly template?: string;
}

const rules: Rules = {
  tooLong: oneOf('refuse', 'cut'),
  overlap: { check: () => false, allowed: 'nothing here: pairs have no windows' },
  scores: oneOf('sigmoid', 'raw'),
  template: {
    check: (value) => pairIn(value) !== undefined,
    allowed: 'a text with {query} once, and {document} once behind it',
  },
};

/** Text around the places; undefined if the template has others. */
function pairIn(template: unknown): PairTemplate | undefined {
  if (typeof template !== 'string') {
    return undefined;
  }
  const [head, middle, tail, ...more] = template.split(/\{(?:query|document)\}/);
  const isWhole = more.length === 0 && tail !== undefined;
  return isWhole && template === `${head}{query}${middle}{document}${tail}`
    ? { head: head!, middle: middle!, tail }
    : undefined;
}

/**
 * Serving that orders documents by how well they answer a query, with a cross-encoder. Each
 * document of a call is a row, and shares a batch with documents of similar length from other
 * calls.
 *
 * Needs `@huggingface/tokenizers`.
 *
 * @throws InvalidServingError for an invalid option
 */
export function rerank(
  options: RerankOptions,
): ServingDefinition<DocumentsToRank, readonly RankedDocument[]> {
  const { scores, template } = options;
  const own: Reranker = new TextModel('rerank', options, rules, {
    pair: pairIn(template),
    tokenizer: (files, limits) =>
      tokenizingPairs(
        files,
        limits,
        'if its model card states a template, give it as the option template',
      ),
    facts: (files) => warnOfActivation(files, scores),
    output: (outputs) => readScores(own.owner, outputs),
  });
  const definition: Definition = {
    warmUp: [{ query: 'a query to warm up', documents: ['a document'] }],
    ...own.definition,
    async preprocess(input, context) {
      const { query, documents, top } = asked(own.owner, input);
      const { batch, tokens } = await pairsOf(context, { query }, { documents });
      return { batch, info: { top, tokens } };
    },
    postprocess(outputs, { info: { top, tokens } }) {
      const logits = outputOf(own.owner, outputs, 'logits');
      return logitsOf(own.owner, logits)
        .map((logit, index) => ({
          index,
          score: scores === 'raw' ? logit : sigmoid(logit),
          tokens: tokens[index]!,
        }))
        .toSorted((one, other) => other.score - one.score)
        .slice(0, top);
    },
  };
  return asTask('rerank', definition, { hasRawScores: scores === 'raw' });
}

type Reranker = TextModel<DocumentsToRank, readonly RankedDocument[], void>;

/** Warns if Python's scores are no sigmoids, unless the serving states its own. */
async function warnOfActivation(files: TextFiles, scores: RerankOptions['scores']): Promise<void> {
  const activation = await activationIn(files);
  if (scores === undefined && activation !== undefined && !/\bSigmoid$/.test(activation)) {
    files.fetching.warn(
      `gives scores from 0 to 1, in the order of Python's; there the scores are those of ` +
        `"activation_fn" ${formatValue(activation)} of the model's files. Give the option scores: ` +
        "'raw' for the model's own numbers, or 'sigmoid'",
    );
  }
}

/** @throws InvalidServingError unless the output is one or two logits */
function readScores(owner: string, outputs: readonly TensorSignature[]): TensorSignature {
  const advice =
    'use a model of this task; the weights of a language model can be converted to one label';
  const output = readOutput(owner, outputs, ['logits'], 2, advice);
  const width = output.shape.at(-1);
  if (typeof width === 'number' && width > 2) {
    throw otherModel(owner, 'one logit of a document, or two', outputs);
  }
  return output;
}

/** Logits of documents. Softmax over two is the sigmoid of their difference. */
function logitsOf(owner: string, output: Tensor): readonly number[] {
  const width = output.dims.at(-1)!;
  const logits = finite(owner, floatsOf(output));
  if (width > 2) {
    throw new InvalidOutputError(
      `${owner} reads one logit of a document, or two, and its model gave ${width}; use a model of ` +
        'this task',
    );
  }
  return width === 1
    ? Array.from(logits)
    : Array.from({ length: logits.length / 2 }, (_, i) => logits[2 * i + 1]! - logits[2 * i]!);
}

type Definition = ServingDefinition<
  DocumentsToRank,
  readonly RankedDocument[],
  Outputs,
  Info,
  TextFacts<void>
>;

interface Info {
  readonly top: number | undefined;
  readonly tokens: readonly number[];
}

function asked(owner: string, input: DocumentsToRank): DocumentsToRank {
  const given: Partial<DocumentsToRank> | null = input;
  const { query, documents, top } = given ?? {};
  const isTop = top === undefined || (Number.isInteger(top) && top > 0);
  if (!isText(query) || !Array.isArray(documents) || documents.length === 0 || !isTop) {
    throw new InvalidInputError(
      `${owner} takes { query, documents, top? } with a text, a list of at least one text and a ` +
        `whole number from 1 on, and was given ${formatValue(input)}`,
    );
  }
  refuseUnknown(owner, input, ['query', 'documents', 'top']);
  const wrong = documents.findIndex((document) => !isText(document));
  if (wrong >= 0) {
    throw new InvalidInputError(
      `${owner} was given ${formatValue(documents[wrong])} as document ${wrong}; give texts that ` +
        'are not empty',
    );
  }
  return { query, documents: documents as readonly string[], top };
}

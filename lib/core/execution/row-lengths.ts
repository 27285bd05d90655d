import type { Batch } from '../batch/batch.js';
import type { Template, VariableAxes } from '../batch/template.js';
import type { ResolvedServing } from '../definition/resolved-serving.js';
import { InvalidInputError, InvalidOutputError } from '../errors.js';
import type { ModelSignature } from '../partitions/onnx/model-signature.js';
import { uncutOutputs, variableAxesOf } from '../partitions/onnx/variable-axes.js';

/**
 * Rows of different lengths in one batch: on the way in they get a template that any length has, so
 * that they share a lane; on the way out each is cut back to its own length.
 */
export class RowLengths {
  /** The templates of rows that were seen, without and with variable axes. */
  private readonly templates = new WeakMap<Template, Template>();

  constructor(
    private readonly serving: string,
    /** The axis of each input, by path. */
    private readonly inputs: VariableAxes,
    /** The axis of each output, by path. */
    private readonly outputs: Readonly<Record<string, number>>,
    /** The outputs that have the length of the batch, and are not cut back. */
    private readonly uncut: ReadonlySet<string>,
  ) {}

  /**
   * The rows with the template that they share with rows of other lengths.
   *
   * @throws InvalidInputError when inputs of the call differ in length
   */
  vary(batch: Batch): Batch {
    const { template } = batch;
    if (!template) {
      return batch;
    }
    const known = this.templates.get(template);
    if (!known) {
      this.checkLengths(template);
    }
    const varied = batch.vary(this.inputs, known);
    this.templates.set(template, varied.template!);
    return varied;
  }

  /** The length of the rows of one call. */
  lengthOf({ template }: Batch): number | undefined {
    return template && this.lengthsIn(template)[0]?.length;
  }

  /** @throws InvalidOutputError when the output does not have the length of its batch */
  checkOutput(rows: Batch, ofBatch: number, cuts = this.outputs): void {
    for (const { path, dims } of rows.template?.leaves ?? []) {
      const axis = Object.hasOwn(cuts, path) ? cuts[path]! : undefined;
      if (axis !== undefined && dims[axis] !== ofBatch) {
        throw new InvalidOutputError(
          `Output ${path === '' ? '' : `"${path}" `}has the shape [${dims.join(', ')}]; its ` +
            `variableAxis ${axis} must have the length ${ofBatch}, to which the rows of the batch ` +
            'were padded',
        );
      }
    }
  }

  /** The output rows, cut back to the length of their call; a copy. */
  cut(rows: Batch, length: number, cuts = this.outputs): Batch {
    return rows.cut(cuts, length);
  }

  /** The axis of an output that a hook asks for. */
  cutsOfHook(name: string): Readonly<Record<string, number>> {
    return Object.hasOwn(this.outputs, name) ? { '': this.outputs[name]! } : {};
  }

  /** @throws InvalidInputError for an output that has the length of the batch, and is not cut back */
  checkHooks(hooks: readonly string[]): void {
    const uncut = hooks.find((hook) => this.uncut.has(hook));
    if (uncut !== undefined) {
      throw new InvalidInputError(
        `Serving "${this.serving}" pads rows to the longest of their batch, to which the hook ` +
          `"${uncut}" would have its length; declare its variableAxis`,
      );
    }
  }

  private checkLengths(template: Template): void {
    const [first, ...others] = this.lengthsIn(template);
    const other = others.find(({ length }) => length !== first!.length);
    if (first && other) {
      throw new InvalidInputError(
        `Serving "${this.serving}" pads its rows to one length, and was given "${first.path}" of ` +
          `length ${first.length} and "${other.path}" of length ${other.length}; give all of them ` +
          'the same length',
      );
    }
  }

  private lengthsIn({ leaves }: Template): { readonly path: string; readonly length: number }[] {
    return leaves.flatMap(({ path, dims }) => {
      const axis = Object.hasOwn(this.inputs, path) ? this.inputs[path]!.axis : undefined;
      const length = axis === undefined ? undefined : dims[axis];
      return length === undefined ? [] : [{ path, length }];
    });
  }
}

/** For a model, or a template, with variable axes. */
export function rowLengthsOf(
  { name, template = [], cuts }: Pick<ResolvedServing, 'name' | 'template' | 'cuts'>,
  signature?: ModelSignature,
): RowLengths | undefined {
  const inputs = variableAxesOf(signature?.inputs ?? template);
  if (Object.keys(inputs).length === 0) {
    return undefined;
  }
  if (!signature) {
    return new RowLengths(name, inputs, cuts, new Set());
  }
  const outputs = Object.entries(variableAxesOf(signature.outputs));
  const axes = Object.fromEntries(outputs.map(([path, { axis }]) => [path, axis]));
  return new RowLengths(name, inputs, axes, uncutOutputs(signature));
}

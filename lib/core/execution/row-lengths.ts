import type { Batch } from '../batch/batch.js';
import type { Template, VariableAxes } from '../batch/template.js';
import type { ResolvedServing } from '../definition/resolved-serving.js';
import { InvalidInputError, InvalidOutputError } from '../errors.js';
import type { ModelSignature } from '../partitions/model/model-signature.js';
import { uncutOutputs, variableAxesOf } from '../partitions/model/variable-axes.js';

/**
 * Rows of different lengths share a lane and a batch; we cut each output row back to its own
 * length.
 */
export class RowLengths {
  private readonly templates = new WeakMap<Template, Template>();
  private areApart = false;

  constructor(
    private readonly serving: string,
    private readonly inputs: VariableAxes,
    private readonly outputs: Readonly<Record<string, number>>,
    /** Outputs with the batch's length. */
    private readonly uncut: ReadonlySet<string>,
  ) {}

  /** Pads no rows from now on. */
  keepApart(): void {
    this.areApart = true;
  }

  /** @throws InvalidInputError if the call's inputs differ in length */
  vary(batch: Batch): Batch {
    const { template } = batch;
    if (!template) {
      return batch;
    }
    const known = this.templates.get(template);
    if (!known) {
      this.checkLengths(template);
    }
    if (this.areApart) {
      return batch;
    }
    const varied = batch.vary(this.inputs, known);
    this.templates.set(template, varied.template!);
    return varied;
  }

  lengthOf({ template }: Batch): number | undefined {
    return template && this.lengthsIn(template)[0]?.length;
  }

  /** @throws InvalidOutputError if the output doesn't have its batch's length */
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

  cut(rows: Batch, length: number, cuts = this.outputs): Batch {
    return rows.cut(cuts, length);
  }

  cutsOfHook(name: string): Readonly<Record<string, number>> {
    return Object.hasOwn(this.outputs, name) ? { '': this.outputs[name]! } : {};
  }

  /** @throws InvalidInputError for an output with the batch's length, which we don't cut back */
  checkHooks(hooks: readonly string[]): void {
    const uncut = hooks.find((hook) => this.uncut.has(hook));
    if (uncut !== undefined) {
      throw new InvalidInputError(
        `Serving "${this.serving}" pads rows to the longest of their batch, and the output of the ` +
          `hook "${uncut}" would be padded too; declare its variableAxis`,
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

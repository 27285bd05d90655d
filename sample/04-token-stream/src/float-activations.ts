import { field, fieldsOf, integerField } from './protobuf.js';

/**
 * The same ONNX model with its weights still in int8, but its activations left in float32.
 *
 * A dynamically quantised model rounds all activations of a tensor by one scale, which the largest
 * of them sets. In this model those of a prompt's first token are up to a hundred times the others,
 * so that a prompt read in one piece loses its meaning; and since a tensor holds all rows of a
 * batch, every answer depends on the others. Without that rounding a row gives the same numbers in
 * any company; a step takes about twice the time.
 *
 * The numbers of fields are those of onnx.proto:
 * https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
 */
export function withFloatActivations(model: Buffer): Buffer {
  return Buffer.concat(
    Array.from(fieldsOf(model), ({ number, content, raw }) =>
      number === 7 ? field(7, ...rewriteGraph(content)) : raw,
    ),
  );
}

function rewriteGraph(graph: Buffer): Buffer[] {
  return (
    Array.from(fieldsOf(graph))
      // The types of intermediate values are no longer true, and onnxruntime finds them itself.
      .filter(({ number }) => number !== 13)
      .flatMap(({ number, content, raw }) => (number === 1 ? rewriteNode(content, raw) : [raw]))
  );
}

function rewriteNode(content: Buffer, raw: Buffer): Buffer[] {
  const fields = [...fieldsOf(content)];
  const texts = (wanted: number) =>
    fields.filter(({ number }) => number === wanted).map((each) => each.content.toString());
  const [inputs, outputs, [operator]] = [texts(1), texts(2), texts(4)];

  if (operator === 'DynamicQuantizeLinear') {
    const [quantized, scale] = outputs as [string, string];
    // Nothing is scaled: the multiplication by this scale after the product becomes one by 1.
    return [
      node('Identity', inputs, [quantized]),
      node('Constant', [], [scale], floatAttribute('value', 1)),
    ];
  }
  if (operator === 'MatMulInteger') {
    const [values, weights, , zeroPoint] = inputs as [string, string, string, string];
    const [float, zero, centered] = ['float', 'zero', 'centered'].map(
      (suffix) => `${weights}_${suffix}`,
    ) as [string, string, string];
    // onnxruntime folds the first three into one constant when it loads the model.
    return [
      node('Cast', [weights], [float], toFloat),
      node('Cast', [zeroPoint], [zero], toFloat),
      node('Sub', [float, zero], [centered]),
      node('MatMul', [values, centered], outputs),
    ];
  }
  return [raw];
}

function node(
  operator: string,
  inputs: readonly string[],
  outputs: readonly string[],
  ...attributes: readonly Buffer[]
): Buffer {
  return field(
    1,
    ...inputs.map((name) => field(1, name)),
    ...outputs.map((name) => field(2, name)),
    field(4, operator),
    ...attributes.map((attribute) => field(5, attribute)),
  );
}

const float32 = 1;
const toFloat = Buffer.concat([field(1, 'to'), integerField(3, float32), integerField(20, 2)]);

/** An attribute that is a float32 scalar. */
function floatAttribute(name: string, value: number): Buffer {
  const data = Buffer.alloc(4);
  data.writeFloatLE(value);
  return Buffer.concat([
    field(1, name),
    field(5, integerField(2, float32), field(9, data)),
    integerField(20, 4),
  ]);
}

import { describe, expect, it } from '@jest/globals';
import { InvalidInputError, InvalidServingError, RequestTooLargeError } from 'nestjs-serving';
import {
  type LabelScore,
  textClassification,
  type TextToLabel,
  zeroShotClassification,
  type ZeroShotOptions,
} from 'nestjs-serving/tasks';
import { type ModelFiles } from '../../../lib/extensions/tasks/index.js';
import { useTypedServings } from '../../fixtures/serving/use-servings.js';
import { readTiny, tinyFiles } from '../../fixtures/tasks/tiny-models.js';

const start = useTypedServings();

/** The tiny classifier with these labels, as a model for inference has them. */
function modelOf(labels: readonly string[], more: object = {}) {
  const paths = ['onnx/model.onnx', 'tokenizer.json', 'tokenizer_config.json'];
  const config = JSON.parse(readTiny('classifier/config.json').toString()) as object;
  const files = tinyFiles('classifier', paths, {
    'config.json': { ...config, id2label: Object.fromEntries(labels.entries()), ...more },
  });
  return { from: files as ModelFiles, isolation: 'none' as const };
}

const NLI = ['contradiction', 'neutral', 'entailment'];
const text = 'Where is my money? I want it back.';
const labels = ['a refund', 'a delivery', 'the card'];

const ofLabels = (options: Partial<ZeroShotOptions> = {}) =>
  start(zeroShotClassification({ name: 'net', model: modelOf(NLI), ...options }));

/** The model's own numbers for each pair, by the place of a label in config.json. */
async function logitsOf(template: string): Promise<number[][]> {
  const names = ['0', '1', '2'];
  const model = modelOf(names, { problem_type: 'regression' });
  const raw = await start(textClassification({ name: 'raw', model }));
  const rows = await Promise.all(
    labels.map((label) => raw.batchedRun({ text, pair: template.replace('{}', label) })),
  );
  return rows.map((row) => names.map((name) => row.find((each) => each.label === name)!.score));
}

const byLabel = (found: readonly LabelScore[]): number[] =>
  labels.map((label) => found.find((each) => each.label === label)!.score);
const close = (values: readonly number[]): unknown[] =>
  values.map((value) => expect.closeTo(value, 5));

describe('zeroShotClassification', () => {
  it("[22.28] Scores are the softmax of each hypothesis' entailment, as in Python's pipeline", async () => {
    const logits = await logitsOf('This example is {}.');
    const powers = logits.map(([, , entails]) => Math.exp(entails!));
    const sum = powers.reduce((total, power) => total + power, 0);
    const serving = await ofLabels();
    const found = await serving.batchedRun({ text, labels });

    expect(byLabel(found)).toEqual(close(powers.map((power) => power / sum)));
    const scores = found.map(({ score }) => score);
    expect(scores).toEqual(scores.toSorted((a, b) => b - a));
    // In a batch of several calls, too.
    const together = await Promise.all([1, 2, 3].map(() => serving.batchedRun({ text, labels })));
    together.forEach((each) => expect(byLabel(each)).toEqual(close(byLabel(found))));
  });

  it('[22.28] With several labels, and for a lone one, entailment stands against contradiction', async () => {
    const template = 'It is about {}!';
    const logits = await logitsOf(template);
    const expected = logits.map(([no, , yes]) => 1 / (1 + Math.exp(no! - yes!)));
    const serving = await ofLabels({ template });

    expect(byLabel(await serving.batchedRun({ text, labels, multiLabel: true }))).toEqual(
      close(expected),
    );
    expect(await serving.batchedRun({ text, labels: [labels[0]!] })).toEqual([
      { label: labels[0], score: expect.closeTo(expected[0]!, 5) },
    ]);
    const apart = await ofLabels({ name: 'apart', template, multiLabel: true });
    expect(byLabel(await apart.batchedRun({ text, labels }))).toEqual(close(expected));
  });

  it('[22.28] The labels of config.json may stand in another order', async () => {
    const logits = await logitsOf('This example is {}.');
    const serving = await ofLabels({ model: modelOf(['ENTAILMENT', 'neutral', 'contradiction']) });
    const found = await serving.batchedRun({ text, labels, multiLabel: true });
    expect(byLabel(found)).toEqual(
      close(logits.map(([yes, , no]) => 1 / (1 + Math.exp(no! - yes!)))),
    );
  });

  it.each<[unknown, string]>([
    ['a text', 'takes { text, labels, multiLabel? }'],
    [{ text, labels: [] }, 'takes { text, labels'],
    [{ text, labels: ['a', ''] }, 'takes { text, labels'],
    [{ text: '', labels }, 'takes { text, labels'],
    [{ text, labels, template: '{}' }, 'takes { text, labels'],
    [{ text, labels, multiLabel: 1 }, 'takes { text, labels'],
    [{ text, labels: ['a', '[SEP]'] }, 'labels[1]: '],
    [{ text: '[SEP]', labels }, 'text: '],
  ])('[22.28] An unusable call is refused: %j', async (input, message) => {
    const serving = await ofLabels();
    const refused = serving.batchedRun(input as TextToLabel);
    await expect(refused).rejects.toThrow(InvalidInputError);
    await expect(refused).rejects.toThrow(message);
  });

  it('[22.28] A long text is cut, and never its label', async () => {
    const cutting = await ofLabels({ tooLong: 'cut', maxTokens: 24 });
    const long = `${text} `.repeat(9);
    expect(await cutting.batchedRun({ text: long, labels })).toHaveLength(3);
    const refused = cutting.batchedRun({ text, labels: ['ok', 'word '.repeat(12)] });
    await expect(refused).rejects.toThrow(RequestTooLargeError);
    await expect(refused).rejects.toThrow('labels[1]: Serving "net"');
    const strict = (await ofLabels({ name: 'strict' })).batchedRun({ text: long, labels });
    await expect(strict).rejects.toThrow(RequestTooLargeError);
  });

  it('[22.28] A model or option of another task fails the start', async () => {
    const other = ofLabels({ model: modelOf(['good', 'bad', 'so-so']) });
    await expect(other).rejects.toThrow(InvalidServingError);
    await expect(other).rejects.toThrow('this one\'s are "good", "bad", "so-so"');
    for (const [option, value] of Object.entries({
      template: 'no place',
      tooLong: 'window',
      overlap: 1,
    })) {
      expect(() =>
        zeroShotClassification({ name: 'net', model: modelOf(NLI), [option]: value }),
      ).toThrow(`option "${option}" is`);
    }
  });
});

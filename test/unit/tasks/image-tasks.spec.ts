import { mkdtemp, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from '@jest/globals';
import {
  InvalidInputError,
  InvalidServingError,
  RequestTooLargeError,
  type ServingDefinition,
  type Tensor,
} from 'nestjs-serving';
import sharp from 'sharp';
import {
  imageClassification,
  imageEmbedding,
  type ImageInput,
  type ModelFiles,
} from '../../../lib/extensions/tasks/index.js';
import { numberOfFloat16 } from '../../../lib/doors/values.js';
import { value } from '../../fixtures/models/models.js';
import { node, onnxModel, type OnnxValue } from '../../fixtures/models/onnx-writer.js';
import { useTypedServings } from '../../fixtures/serving/use-servings.js';
import { imageAnswers, readTiny, tinyFiles, tinyModel } from '../../fixtures/tasks/tiny-models.js';

const start = useTypedServings();

const image = (name: string): Buffer => readTiny(`images/${name}`);
const pathOf = (name: string): string =>
  fileURLToPath(new URL(`../../fixtures/tasks/images/${name}`, import.meta.url));

type Tiny = 'vit' | 'convnext' | 'clip';

const processors: Record<Tiny, { readonly mean: number[]; readonly std: number[] }> = {
  vit: { mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5] },
  convnext: { mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225] },
  clip: {
    mean: [0.48145466, 0.4578275, 0.40821073],
    std: [0.26862954, 0.26130258, 0.27577711],
  },
};

/** What the model is given for an image. */
async function inputFor<Output>(
  definition: ServingDefinition<ImageInput, Output>,
  bytes: ImageInput,
): Promise<Tensor> {
  let given: unknown;
  const serving = await start({
    ...definition,
    async preprocess(input, context) {
      const prepared = await definition.preprocess!(input, context);
      given = prepared.batch;
      return prepared;
    },
  });
  await serving.batchedRun(bytes);
  return Object.values(given as Record<string, Tensor>)[0]!;
}

function tinyInput(tiny: Tiny, name: string): Promise<Tensor> {
  const options = { name: 'net', model: tinyModel(tiny) };
  return tiny === 'clip'
    ? inputFor(imageEmbedding(options), image(name))
    : inputFor(imageClassification(options), image(name));
}

/** How far the levels (0 to 255) are from those of Python: on average, and at most. */
async function apart(tiny: Tiny, name: string): Promise<{ mean: number; most: number }> {
  const { data } = await tinyInput(tiny, name);
  const { mean, std } = processors[tiny];
  const theirs = Buffer.from(imageAnswers[tiny][name]!.levels, 'base64');
  expect(data).toHaveLength(theirs.length);
  const differences = Array.from(data as Float32Array, (number, at) => {
    const channel = Math.floor((3 * at) / data.length);
    const level = Math.round((number * std[channel]! + mean[channel]!) * 255);
    return Math.abs(level - theirs[at]!);
  });
  const sum = differences.reduce((total, each) => total + each, 0);
  return { mean: sum / differences.length, most: Math.max(...differences) };
}

/** The files of a model, with others in their place; undefined for none. */
function filesOf(name: Tiny, others: Record<string, object | undefined> = {}, model?: Uint8Array) {
  const own = ['config.json', 'preprocessor_config.json'];
  const written = model ? { 'config.json': {}, 'onnx/model.onnx': model } : {};
  const paths = model ? own : [...own, 'onnx/model.onnx'];
  const files = tinyFiles(name, paths, { ...written, ...others });
  return { from: files as ModelFiles, isolation: 'none' as const };
}

/** A model that returns its input by the given names, flattened. */
function flattening(input: Readonly<Record<string, OnnxValue>>, ...outputs: string[]): Uint8Array {
  const [[name, { type, dims }]] = Object.entries(input) as [[string, OnnxValue]];
  const size = dims.slice(1).reduce((product: number, each) => product * Number(each), 1);
  return onnxModel({
    inputs: input,
    outputs: Object.fromEntries(outputs.map((each) => [each, value(type, dims[0]!, size)])),
    nodes: outputs.map((each) => node('Flatten', [name], [each], { axis: 1 })),
  });
}

const vitFile = JSON.parse(readTiny('vit/preprocessor_config.json').toString()) as object;

describe('An image', () => {
  it.each<[Tiny, string, string]>([
    ['vit', 'gradient.png', 'has the size of the model'],
    ['vit', 'small.png', 'grows'],
    ['convnext', 'wide.png', 'grows, and is cut'],
    ['convnext', 'deep.png', 'has 16 bits'],
    ['convnext', 'moving.gif', 'is the first of several'],
    ['convnext', 'page.tiff', 'is a TIFF'],
    ['convnext', 'photo.webp', 'is a WebP'],
    ['clip', 'small.png', 'grows, and gets a border'],
    ['clip', 'wide.png', 'grows, and gets a border on two sides'],
  ])('[22.18] becomes the numbers of Python for %s: %s %s', async (tiny, name) => {
    expect(await apart(tiny, name)).toEqual({ mean: 0, most: 0 });
    const { data, dims } = await tinyInput(tiny, name);
    const [, , height, width] = dims as [number, number, number, number];
    const area = height * width;
    const middle = area + (height / 2) * width + Math.floor(height / 3);
    [0, middle, 3 * area - 1].forEach((at, i) =>
      expect(data[at]).toBeCloseTo(imageAnswers[tiny][name]!.pixels[i]!, 5),
    );
  });

  // AVIF is decoded by another library than in Python.
  it.each<[Tiny, string, number, number]>(
    (['vit', 'convnext', 'clip'] as const).flatMap((tiny) => [
      [tiny, 'photo.jpg', 1, 3],
      [tiny, 'rotated.jpg', 1, 3],
      [tiny, 'transparent.png', 1, 3],
      [tiny, 'grey.png', 1, 3],
      [tiny, 'palette.png', 1, 3],
      [tiny, 'wide.png', 1, 5],
      [tiny, 'photo.avif', 2, 12],
    ]),
  )(
    '[22.18] that shrinks becomes nearly the levels of Python for %s: %s, by less than %d on average and %d at most',
    async (tiny, name, mean, most) => {
      const found = await apart(tiny, name);
      expect(found.mean).toBeLessThan(mean);
      expect(found.most).toBeLessThanOrEqual(most);
    },
  );

  it.each<[string, object, number[]]>([
    ['one number and a square', { image_processor_type: 'ViTFeatureExtractor', size: 4 }, [4, 4]],
    [
      'one number and a shorter side, which is cut',
      { image_processor_type: 'CLIPImageProcessorFast', size: 8, crop_size: 6 },
      [6, 6],
    ],
    ['a large ConvNeXT', { image_processor_type: 'ConvNextImageProcessor', size: 384 }, [384, 384]],
    ['no resizing', { do_resize: false, do_center_crop: true, crop_size: 5 }, [5, 5]],
  ])('[22.18] is prepared by the defaults of its processor: %s', async (_, file, size) => {
    const [height, width] = size as [number, number];
    const model = flattening({ x: value('float32', 'batch', 3, height, width) }, 'logits');
    const others = {
      'preprocessor_config.json': { image_processor_type: 'ViTImageProcessor', ...file },
    };
    const files = filesOf('vit', others, model);
    const { dims } = await inputFor(
      imageClassification({ name: 'net', model: files }),
      image('grey.png'),
    );
    expect(dims).toEqual([1, 3, height, width]);
  });

  it('[22.18] keeps its sides for a ConvNeXT from 384 pixels on', async () => {
    const background = { r: 0, g: 0, b: 0 };
    const dark = sharp({ create: { width: 90, height: 20, channels: 3, background } });
    const bytes = await dark.extend({ left: 10, background: '#fff' }).png().toBuffer();
    const firsts = [383, 384].map(async (size) => {
      const file = { image_processor_type: 'ConvNextImageProcessor', size, do_normalize: false };
      const model = flattening({ x: value('float32', 'batch', 3, size, size) }, 'logits');
      const others = { 'preprocessor_config.json': file };
      const definition = imageClassification({ name: 'net', model: filesOf('vit', others, model) });
      return Number((await inputFor(definition, bytes)).data[0]);
    });
    expect(await Promise.all(firsts)).toEqual([0, 1]);
  });

  it('[22.18] has the levels 0 to 255 without rescaling, and halves for a model of float16', async () => {
    const file = { ...vitFile, do_rescale: false, do_normalize: false };
    const { data } = await inputFor(
      imageClassification({
        name: 'net',
        model: filesOf('vit', { 'preprocessor_config.json': file }),
      }),
      image('gradient.png'),
    );
    expect(Array.from(data as Float32Array).slice(0, 3)).toEqual([0, 8, 16]);

    const model = flattening({ x: value('float16', 'batch', 3, 32, 32) }, 'logits');
    const half = await inputFor(
      imageClassification({ name: 'net', model: filesOf('vit', {}, model) }),
      image('gradient.png'),
    );
    expect(half.type).toBe('float16');
    const { buffer, byteOffset } = half.data as Uint16Array;
    const [first, second] = new Uint16Array(buffer, byteOffset, 2);
    expect(numberOfFloat16(first!)).toBe(-1);
    expect(numberOfFloat16(second!)).toBeCloseTo(8 / 127.5 - 1, 3);
  });

  it('[22.18] keeps its levels whatever its colour profile is, as with Pillow', async () => {
    const bytes = await sharp(image('gradient.png')).withIccProfile('p3').png().toBuffer();
    const at = bytes.indexOf('iCCP') - 4;
    const plain = Buffer.concat([
      bytes.subarray(0, at),
      bytes.subarray(at + 12 + bytes.readUInt32BE(at)),
    ]);
    const definition = imageClassification({ name: 'net', model: tinyModel('vit') });
    expect(await inputFor(definition, bytes)).toEqual(await inputFor(definition, plain));
  });

  it('[22.61] is prepared by processor_config.json rather than an older file beside it', async () => {
    const nested = { ...vitFile, do_rescale: false, do_normalize: false };
    const others = { 'processor_config.json': { image_processor: nested } };
    const definition = imageClassification({ name: 'net', model: filesOf('vit', others) });
    const { data } = await inputFor(definition, image('gradient.png'));
    expect(Array.from(data as Float32Array).slice(0, 3)).toEqual([0, 8, 16]);

    const wrong = { 'processor_config.json': { image_processor: { ...vitFile, do_pad: true } } };
    const refused = imageClassification({ name: 'net', model: filesOf('vit', wrong) });
    await expect(start(refused)).rejects.toThrow(
      'processor_config.json of the given files has do_pad',
    );
  });

  it('[22.18] is prepared by processor_config.json if there is no other file', async () => {
    const others = {
      'preprocessor_config.json': undefined,
      'processor_config.json': { image_processor: vitFile },
    };
    const definition = imageClassification({ name: 'net', model: filesOf('vit', others) });
    expect((await inputFor(definition, image('grey.png'))).dims).toEqual([1, 3, 32, 32]);
  });
});

describe('imageClassification', () => {
  const labels = ['cat', 'dog', 'bird'];

  it.each<[Exclude<Tiny, 'clip'>, number, (name: string) => boolean]>([
    ['vit', 1e-5, (name) => /^(gradient|small)/.test(name)],
    ['convnext', 1e-5, (name) => /^(small|wide|deep|moving|page)/.test(name)],
    ['vit', 0.02, (name) => name !== 'print.jpg'],
    ['convnext', 0.02, (name) => name !== 'print.jpg'],
  ])("[22.19] gives Python's labels and scores for %s, within %d", async (tiny, bound, isMeant) => {
    const serving = await start(imageClassification({ name: 'net', model: tinyModel(tiny) }));
    const names = Object.keys(imageAnswers[tiny]).filter(isMeant);
    expect(names.length).toBeGreaterThan(1);
    const replies = await Promise.all(names.map((name) => serving.batchedRun(image(name))));
    replies.forEach((reply, i) => {
      const powers = imageAnswers[tiny][names[i]!]!.logits.map((logit) => Math.exp(logit));
      const sum = powers.reduce((total, power) => total + power, 0);
      const scores = reply.map(({ score }) => score);
      expect(scores).toEqual(scores.toSorted((one, other) => other - one));
      labels.forEach((label, place) => {
        const { score } = reply.find((each) => each.label === label)!;
        expect(Math.abs(score - powers[place]! / sum)).toBeLessThan(bound);
      });
    });
  });

  it('[22.19] gives an image the same scores in a batch and alone', async () => {
    const serving = await start(imageClassification({ name: 'net', model: tinyModel('vit') }));
    const names = Object.keys(imageAnswers.vit);
    const { batches } = serving.counters();
    const together = await Promise.all(names.map((name) => serving.batchedRun(image(name))));
    expect(serving.counters().batches - batches).toBeLessThan(names.length);
    for (const [i, name] of names.entries()) {
      expect(await serving.run(image(name))).toEqual(together[i]);
    }
  });

  it('[22.19] gives the best labels only, and scores that stand by themselves for several', async () => {
    const options = { name: 'net', model: tinyModel('vit') };
    const best = await start(imageClassification({ ...options, top: 1 }));
    expect(await best.batchedRun(image('grey.png'))).toHaveLength(1);
    const several = await start(imageClassification({ ...options, multiLabel: true }));
    const scores = await several.batchedRun(image('gradient.png'));
    const logits = imageAnswers.vit['gradient.png']!.logits.toSorted((a, b) => b - a);
    scores.forEach(({ score }, i) => expect(score).toBeCloseTo(1 / (1 + Math.exp(-logits[i]!)), 5));
  });
});

describe('imageEmbedding', () => {
  const names = Object.keys(imageAnswers.clip).filter((name) => name !== 'print.jpg');

  it.each([
    [{ normalize: false }, 'image_embeds'],
    [{ normalize: false, pooling: 'cls' }, 'cls'],
    [{ normalize: false, pooling: 'mean' }, 'mean'],
    [{}, 'image_embeds'],
  ] as const)("[22.20] gives Python's vectors with %j, from %s", async (options, output) => {
    const serving = await start(
      imageEmbedding({ name: 'net', model: tinyModel('clip'), ...options }),
    );
    const replies = await Promise.all(names.map((name) => serving.batchedRun(image(name))));
    replies.forEach(({ vector }, i) => {
      const theirs = imageAnswers.clip[names[i]!]![output];
      const length = 'normalize' in options ? 1 : Math.hypot(...theirs);
      const bound = /^(small|wide)/.test(names[i]!) ? 1e-5 : 0.03;
      expect(vector).toHaveLength(theirs.length);
      theirs.forEach((each, at) =>
        expect(Math.abs(vector[at]! - each / length)).toBeLessThan(bound),
      );
    });
  });

  it('[22.20] takes the vector of a model that pools by itself', async () => {
    const model = flattening({ x: value('float32', 'batch', 3, 32, 32) }, 'pooler_output', 'other');
    const serving = await start(imageEmbedding({ name: 'net', model: filesOf('vit', {}, model) }));
    const { vector } = await serving.batchedRun(image('gradient.png'));
    expect(vector).toHaveLength(3 * 32 * 32);
    expect(Math.hypot(...vector)).toBeCloseTo(1, 5);
  });

  it.each<[object, string[], string]>([
    [{}, ['last_hidden_state'], "give the option pooling: 'cls' or 'mean'"],
    [{ pooling: 'mean' }, ['pooler_output'], 'leave out the option pooling'],
    [{ pooling: 'mean' }, ['last_hidden_state'], 'of the shape [batch, tokens, size]'],
  ])('[22.22] does not start with %j and the outputs %j', async (options, outputs, message) => {
    const model = flattening({ x: value('float32', 'batch', 3, 32, 32) }, ...outputs);
    const definition = imageEmbedding({
      name: 'net',
      model: filesOf('vit', {}, model),
      ...options,
    });
    await expect(start(definition)).rejects.toThrow(message);
  });
});

describe('A serving of images', () => {
  const options = { name: 'net', model: tinyModel('vit') };
  const svg = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>';

  it.each<[string, unknown, string]>([
    ['a text', pathOf('grey.png'), 'takes the bytes of an encoded image, or { file }'],
    ['nothing', undefined, 'and was given undefined'],
    ['numbers', [1, 2, 3], 'takes the bytes of an encoded image'],
    ['pixels of floats', new Float32Array(12), 'takes the bytes of an encoded image'],
    ['no bytes', new Uint8Array(), 'and was given other bytes'],
    ['other bytes', Buffer.from('not an image'), 'reads JPEG, PNG, WebP, GIF, AVIF and TIFF'],
    ['an SVG', Buffer.from(svg), 'and was given other bytes'],
    ['a PDF', Buffer.from('%PDF-1.7\n'), 'and was given other bytes'],
    ['a cut PNG', image('wide.png').subarray(0, 9000), 'cannot read an image'],
    ['a cut JPEG', image('photo.jpg').subarray(0, 9000), 'cannot read an image'],
    ['a JPEG without end', image('photo.jpg').subarray(0, 20), 'cannot read an image'],
    ['a missing file', { file: '/no/such/file.png' }, 'cannot read "/no/such/file.png"'],
    ['a folder', { file: tmpdir() }, 'it is no file'],
    ['a web address', { file: new URL('https://host.test/a.png') }, 'cannot read "https:'],
    ['a number as file', { file: 7 }, 'or { file }, and was given'],
  ])('[22.21] refuses %s before the queue, and no other call', async (_, input, message) => {
    const serving = await start(imageClassification(options));
    const { batches } = serving.counters();
    const other = serving.batchedRun(image('grey.png'));
    const call = serving.batchedRun(input as ImageInput);
    await expect(call).rejects.toThrow(InvalidInputError);
    await expect(call).rejects.toThrow(message);
    expect(await other).toHaveLength(3);
    expect(serving.counters().batches - batches).toBe(1);
  });

  it('[22.21] refuses an image with damaged colours, and reads one with bytes that do not belong to it', async () => {
    const serving = await start(imageClassification(options));
    const damaged = Buffer.from(image('wide.png'));
    damaged.fill(0, 3000, 3200);
    await expect(serving.batchedRun(damaged)).rejects.toThrow(InvalidInputError);
    const photo = image('photo.jpg');
    const scores = await serving.batchedRun(photo);
    const table = photo.indexOf(Buffer.from([0xff, 0xdb]));
    const faulty = Buffer.concat([
      photo.subarray(0, table),
      Buffer.alloc(2),
      photo.subarray(table),
    ]);
    expect(await serving.batchedRun(faulty)).toEqual(scores);
    expect(await serving.batchedRun(Buffer.concat([photo, Buffer.from('x')]))).toEqual(scores);
  });

  it('[22.21] refuses too many bytes, of a file as well, and takes as many as allowed', async () => {
    const { length } = image('grey.png');
    const tight = await start(imageClassification({ ...options, maxBytes: length - 1 }));
    for (const input of [image('grey.png'), { file: pathOf('grey.png') }]) {
      const call = tight.batchedRun(input);
      await expect(call).rejects.toThrow(RequestTooLargeError);
      await expect(call).rejects.toThrow('or raise maxBytes');
    }
    const enough = await start(imageClassification({ ...options, maxBytes: length }));
    expect(await enough.batchedRun(image('grey.png'))).toHaveLength(3);
  });

  it('[22.21] does not read a file that is too large', async () => {
    const folder = await mkdtemp(join(tmpdir(), 'images-'));
    try {
      const file = join(folder, 'large.png');
      await writeFile(file, '');
      // Without the check, Node would refuse to read a file of this size.
      await truncate(file, 3 * 2 ** 30);
      const serving = await start(imageClassification(options));
      await expect(serving.batchedRun({ file })).rejects.toThrow(RequestTooLargeError);
    } finally {
      await rm(folder, { recursive: true });
    }
  });

  it('[22.21] refuses too many pixels before it decodes them', async () => {
    const tight = await start(imageClassification({ ...options, maxPixels: 70 * 50 - 1 }));
    await expect(tight.batchedRun(image('grey.png'))).rejects.toThrow(RequestTooLargeError);
    const enough = await start(imageClassification({ ...options, maxPixels: 70 * 50 }));
    expect(await enough.batchedRun(image('grey.png'))).toHaveLength(3);

    // A bomb: its header states 2.5 billion pixels, and nothing follows.
    const header = Buffer.from(image('grey.png'));
    const bomb = await resized(header, 50_000, 50_000);
    const call = enough.batchedRun(bomb);
    await expect(call).rejects.toThrow(RequestTooLargeError);
    await expect(call).rejects.toThrow('one has 50000 x 50000');
  });

  it('[22.21] reads a very long image in the middle only', async () => {
    const long = await sharp({
      create: { width: 2, height: 200_000, channels: 3, background: 'red' },
    })
      .png()
      .toBuffer();
    const serving = await start(imageEmbedding({ name: 'net', model: tinyModel('clip') }));
    expect((await serving.batchedRun(long)).vector).toHaveLength(16);
  });

  it('[22.23] reads a file by its path or URL, and bytes that are a part of others', async () => {
    const serving = await start(imageClassification(options));
    const scores = await serving.batchedRun(image('photo.jpg'));
    expect(await serving.batchedRun({ file: pathOf('photo.jpg') })).toEqual(scores);
    const url = new URL('../../fixtures/tasks/images/photo.jpg', import.meta.url);
    expect(await serving.batchedRun({ file: url })).toEqual(scores);
    const around = new Uint8Array([1, 2, ...image('photo.jpg'), 3]);
    expect(await serving.batchedRun(around.subarray(2, -1))).toEqual(scores);
  });

  it('[22.23] ends a call that is cancelled while its image is decoded', async () => {
    const serving = await start(imageClassification(options));
    const { batches } = serving.counters();
    const stop = new AbortController();
    const call = serving.batchedRun(image('photo.jpg'), { signal: stop.signal });
    stop.abort(new Error('gone'));
    await expect(call).rejects.toThrow('gone');
    expect(serving.queued).toBe(0);
    await serving.batchedRun(image('grey.png'));
    expect(serving.counters().batches - batches).toBe(1);
  });

  it('[22.23] reads many transparent images, one after a damaged one', async () => {
    const serving = await start(imageClassification(options));
    const scores = await serving.batchedRun(image('transparent.png'));
    const damaged = image('transparent.png').subarray(0, 6000);
    const inputs = [damaged, ...Array.from({ length: 20 }, () => image('transparent.png'))];
    const [first, ...others] = await Promise.allSettled(
      inputs.map((input) => serving.batchedRun(input)),
    );
    expect(first!.status).toBe('rejected');
    expect(others).toEqual(others.map(() => ({ status: 'fulfilled', value: scores })));
  });

  it.each<[string, Record<string, object | undefined>, string]>([
    ['has preprocessor_config.json', { 'preprocessor_config.json': undefined }, 'has no prepro'],
    ['has a known processor', { 'preprocessor_config.json': {} }, 'are prepared by undefined'],
    [
      'has no other processor',
      { 'preprocessor_config.json': { image_processor_type: 'LevitImageProcessor' } },
      'are prepared by LevitImageProcessor',
    ],
    ...Object.entries({
      do_pad: true,
      do_resize: false,
      do_normalize: 1,
      resample: 4,
      size: { shortest_edge: 32, longest_edge: 64 },
      image_mean: [0.5],
      rescale_factor: '1/255',
    }).map(([key, stated]): [string, Record<string, object>, string] => [
      `has no ${key} ${JSON.stringify(stated)}`,
      { 'preprocessor_config.json': { ...vitFile, [key]: stated } },
      `has ${key}: `,
    ]),
    [
      'cuts images that keep their shape',
      { 'preprocessor_config.json': { ...vitFile, size: { shortest_edge: 32 } } },
      'has do_center_crop: ',
    ],
    [
      'has one kind of size',
      {
        'preprocessor_config.json': {
          ...vitFile,
          size: { shortest_edge: 16, height: 32, width: 32 },
        },
      },
      'has size: ',
    ],
    [
      'has a part that a crop leaves',
      {
        'preprocessor_config.json': {
          image_processor_type: 'ConvNextImageProcessor',
          size: { shortest_edge: 32 },
          crop_pct: 0,
        },
      },
      'has crop_pct: 0',
    ],
    [
      'has a crop that is a size',
      { 'preprocessor_config.json': { ...vitFile, do_center_crop: true } },
      'has crop_size: ',
    ],
  ])('[22.22] does not start unless the model %s', async (_, others, message) => {
    const definition = imageClassification({ name: 'net', model: filesOf('vit', others) });
    await expect(start(definition)).rejects.toThrow(message);
    await expect(start(definition)).rejects.toThrow('Serving "net"');
  });

  it.each<[string, Readonly<Record<string, OnnxValue>>]>([
    ['channels last', { x: value('float32', 'batch', 32, 32, 3) }],
    ['bytes', { x: value('uint8', 'batch', 3, 32, 32) }],
    ['one channel', { x: value('float32', 'batch', 1, 32, 32) }],
    ['vectors', { x: value('float32', 'batch', 3072) }],
  ])('[22.22] does not start with a model of %s', async (_, input) => {
    const model = filesOf('vit', {}, flattening(input, 'logits'));
    const begun = start(imageClassification({ name: 'net', model }));
    await expect(begun).rejects.toThrow('fills one input, floats of the shape [batch, 3, height');
  });

  it('[22.22] does not start with a model that reads texts, too', async () => {
    const model = onnxModel({
      inputs: { x: value('float32', 'batch', 3, 32, 32), y: value('float32', 'batch', 4) },
      outputs: { logits: value('float32', 'batch', 3072), z: value('float32', 'batch', 4) },
      nodes: [node('Flatten', ['x'], ['logits'], { axis: 1 }), node('Identity', ['y'], ['z'], {})],
    });
    const begun = start(imageClassification({ name: 'net', model: filesOf('vit', {}, model) }));
    await expect(begun).rejects.toThrow('only the file for images');
  });

  it.each<[object, string]>([
    [{ maxBytes: 0 }, 'option "maxBytes" is 0'],
    [{ maxPixels: 1.5 }, 'option "maxPixels" is 1.5'],
    [{ top: 0 }, 'option "top" is 0'],
    [{ multiLabel: 'yes' }, 'option "multiLabel" is "yes"'],
  ])('[22.22] refuses the options %j', (given, message) => {
    const create = () => imageClassification({ ...options, ...given });
    expect(create).toThrow(InvalidServingError);
    expect(create).toThrow(message);
    expect(() => imageEmbedding({ ...options, pooling: 'max' as never })).toThrow(
      '"pooling" is "max"',
    );
  });

  it('[22.22] runs batches of 8 images, or as many as the option says', () => {
    expect(imageClassification(options).batchSize).toBe(8);
    expect(imageEmbedding({ ...options, batchSize: { rows: 3 } }).batchSize).toEqual({ rows: 3 });
  });
});

/** The PNG with another size in its header, whose checksum is right. */
async function resized(png: Buffer, width: number, height: number): Promise<Buffer> {
  const { crc32 } = await import('node:zlib');
  const bytes = Buffer.from(png);
  bytes.writeUInt32BE(width, 16);
  bytes.writeUInt32BE(height, 20);
  bytes.writeUInt32BE(crc32(bytes.subarray(12, 29)), 29);
  return bytes;
}

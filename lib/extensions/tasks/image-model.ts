import { readFile, stat } from 'node:fs/promises';
import {
  InvalidInputError,
  InvalidServingError,
  RequestTooLargeError,
  ServingLoadError,
  type ServingSignature,
  Tensor,
  type TensorSignature,
} from '../../index.js';
import { isRecord, type Rules, whole } from '../../doors/options.js';
import { formatBytes, formatValue, messageOf } from '../../doors/text.js';
import { numberOfFloat16 } from '../../doors/values.js';
import {
  grown,
  type Processor,
  processorOf,
  type Side,
  sideOf,
  type Size,
} from './image-processor.js';
import { preparation } from './python-settings.js';
import { type LoadingFiles, ModelOfTask, type TaskOptions } from './task-model.js';

/** Image in a file of this machine. */
export interface ImageFile {
  /** Path or `file:` URL. Never take it from a request: a caller could read any file. */
  readonly file: string | URL;
}

/**
 * Encoded image: the bytes of a JPEG, PNG, WebP, GIF (its first frame), AVIF or TIFF (its first
 * page), or the file with them.
 */
export type ImageInput = Uint8Array | ImageFile;

/** Options of a task on images and of any serving. */
export interface ImageTaskOptions<Output> extends Omit<
  TaskOptions<ImageInput, Output>,
  'batchSize'
> {
  /**
   * Most images of a batch, or as in any serving.
   *
   * @default 8
   */
  readonly batchSize?: TaskOptions<ImageInput, Output>['batchSize'];
  /**
   * Most bytes of an encoded image. Larger ones are refused with a RequestTooLargeError.
   *
   * @default 20971520 (20 MiB)
   */
  readonly maxBytes?: number;
  /**
   * Most pixels of an image, across times down. Larger ones are refused with a RequestTooLargeError
   * before they are decoded.
   *
   * @default 50000000
   */
  readonly maxPixels?: number;
}

const rules: Rules = { maxBytes: whole(1, 2 ** 30), maxPixels: whole(1, 2 ** 30) };

type Sharp = (input: Uint8Array, options: object) => Picture;

interface Picture {
  metadata(): Promise<{
    readonly autoOrient: Size;
    readonly hasAlpha?: boolean;
  }>;
  toColourspace(name: 'srgb'): Picture;
  removeAlpha(): Picture;
  extract(part: Size & { readonly left: number; readonly top: number }): Picture;
  resize(
    options: Size & { readonly fit: 'fill'; readonly kernel: Processor['kernel']['name'] },
  ): Picture;
  raw(): Picture;
  toBuffer(): Promise<Uint8Array>;
}

export interface ImageFacts<Own> {
  readonly sharp: Sharp;
  readonly processor: Processor;
  readonly own: Own;
}

export class ImageModel<Output, Own> extends ModelOfTask<ImageInput, Output, ImageFacts<Own>> {
  private readonly limits: { readonly maxBytes: number; readonly maxPixels: number };
  /** End of the last transparent image. */
  private lastTransparent: Promise<unknown> = Promise.resolve();

  constructor(
    private readonly task: string,
    options: ImageTaskOptions<Output>,
    own: Rules,
    private readonly factsOf: (files: LoadingFiles) => Promise<Own>,
    /** Refuses outputs of another task's model. */
    private readonly check: (outputs: readonly TensorSignature[], own: Own) => void,
  ) {
    super(task, options, { ...rules, ...own });
    const { maxBytes = 20 * 2 ** 20, maxPixels = 50_000_000 } = options;
    this.limits = { maxBytes, maxPixels };
  }

  protected async read(files: LoadingFiles) {
    const { repository, fetching } = files;
    const { file, config } = await preparation(repository, 'images', fetching);
    return {
      sharp: await loadSharp(this.task),
      processor: processorOf(repository.name, config, file),
      own: await this.factsOf(files),
    };
  }

  get definition() {
    const { batchSize = 8, ...others } = this.others;
    return { warmUp: [PIXEL], ...others, batchSize, model: this.runner };
  }

  /**
   * Model's input, as one row.
   *
   * @throws InvalidInputError or RequestTooLargeError for an unreadable image
   */
  async encode(
    input: ImageInput,
    { inputs: [port] }: ServingSignature,
    facts: ImageFacts<Own>,
  ): Promise<Record<string, Tensor>> {
    const { name, type } = port!;
    const bytes = await this.bytesOf(input);
    return { [name]: tensorOf(await this.decode(bytes, facts), facts.processor, type) };
  }

  protected accept(
    { inputs, outputs = [] }: ServingSignature,
    { own }: ImageFacts<Own>,
  ): undefined {
    const [input, ...others] = inputs;
    const [, channels] = input!.shape;
    const isOfImages = /^float(32|16)$/.test(input!.type) && input!.shape.length === 4;
    if (others.length > 0 || !isOfImages || (typeof channels === 'number' && channels !== 3)) {
      const found = inputs.map(({ name, type, shape }) => `${name} (${type} [${shape.join()}])`);
      throw new InvalidServingError(
        `${this.owner} fills one input, floats of the shape [batch, 3, height, width], and its ` +
          `model has ${found.join(', ')}; use a model of this task, of a model for texts and images ` +
          'only the file for images, or write its preprocess by hand with defineServing',
      );
    }
    this.check(outputs, own);
  }

  private async bytesOf(input: unknown): Promise<Uint8Array> {
    if (isBytes(input)) {
      return input;
    }
    const file = isRecord(input) ? input['file'] : undefined;
    if (typeof file !== 'string' && !(file instanceof URL)) {
      throw new InvalidInputError(
        `${this.owner} takes the bytes of an encoded image, or { file }, and was given ` +
          formatValue(input),
      );
    }
    try {
      const found = await stat(file);
      if (!found.isFile()) {
        throw new Error('it is no file');
      }
      this.checkSize(found.size);
      return await readFile(file);
    } catch (cause) {
      if (cause instanceof RequestTooLargeError) {
        throw cause;
      }
      throw this.unreadable(formatValue(String(file)), cause);
    }
  }

  private checkSize(bytes: number): void {
    const { maxBytes } = this.limits;
    if (bytes > maxBytes) {
      throw new RequestTooLargeError(
        `${this.owner} reads images of at most ${formatBytes(maxBytes)}, and one has ` +
          `${formatBytes(bytes)}; send a smaller one, or raise maxBytes`,
      );
    }
  }

  private unreadable(what: string, cause: unknown): InvalidInputError {
    return new InvalidInputError(`${this.owner} cannot read ${what}: ${messageOf(cause)}`, {
      cause,
    });
  }

  /** RGB pixels that the model reads, without a border. */
  private async decode(bytes: Uint8Array, { sharp, processor }: ImageFacts<Own>): Promise<Pixels> {
    this.checkSize(bytes.length);
    const { maxPixels } = this.limits;
    const image = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
    if (!FORMATS.some((format) => format.test(image.toString('latin1', 0, 12)))) {
      throw new InvalidInputError(
        `${this.owner} reads JPEG, PNG, WebP, GIF, AVIF and TIFF, and was given other bytes`,
      );
    }
    // Like PIL, ignores colour profiles and forgives small faults in a file.
    const options = { autoOrient: true, ignoreIcc: true, failOn: 'error', limitInputPixels: false };
    try {
      const { autoOrient: size, hasAlpha = false } = await sharp(image, options).metadata();
      if (size.width * size.height > maxPixels) {
        throw new RequestTooLargeError(
          `${this.owner} reads images of at most ${maxPixels} pixels, and one has ${size.width} x ` +
            `${size.height}; send a smaller one, or raise maxPixels`,
        );
      }
      const across = sideOf(processor, size, 'width');
      const down = sideOf(processor, size, 'height');
      const open = (): Picture => sharp(image, options).toColourspace('srgb').removeAlpha();
      const decode = (picture: Picture) => shrunk(picture, size, across, down, processor.kernel);
      const pixels = await (hasAlpha && isShrunk(size, across, down)
        ? this.inTurn(async () => {
            const raw = { ...size, channels: 3 };
            return decode(sharp(await open().raw().toBuffer(), { raw, limitInputPixels: false }));
          })
        : decode(open()));
      return { pixels: grown(pixels, across, down), across, down };
    } catch (cause) {
      if (cause instanceof RequestTooLargeError) {
        throw cause;
      }
      throw this.unreadable('an image', cause);
    }
  }

  /**
   * Decodes transparent images before they shrink, since libvips would weight colours by opacity;
   * one at a time, since that takes memory.
   */
  private inTurn<Value>(work: () => Promise<Value>): Promise<Value> {
    const turn = this.lastTransparent.then(work);
    this.lastTransparent = turn.catch(() => {});
    return turn;
  }
}

interface Pixels {
  /** Red, green and blue of each. */
  readonly pixels: Uint8Array;
  readonly across: Side;
  readonly down: Side;
}

/** Beginnings of the formats. libvips also reads others, such as SVG. */
const FORMATS = [
  /^\xff\xd8\xff/,
  /^\x89PNG\r\n/,
  /^RIFF.{4}WEBP/s,
  /^GIF8[79]a/,
  /^.{4}ftypavi[fs]/s,
  /^(?:II\*\0|MM\0\*|II\+\0|MM\0\+)/,
];

/** Grey pixel, as a PNG. */
const PIXEL: ImageInput = Buffer.from(
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mNoaGgAAAMEAYF1LgG8AAAAAElFTkSuQmCC',
  'base64',
);

function isBytes(value: unknown): value is Uint8Array {
  return Object.prototype.toString.call(value) === '[object Uint8Array]';
}

async function loadSharp(task: string): Promise<Sharp> {
  try {
    return (await import('sharp')).default;
  } catch (cause) {
    throw new ServingLoadError(
      `${task} needs sharp, which cannot be loaded; install it: npm install sharp`,
      { cause },
    );
  }
}

function isShrunk({ width, height }: Size, across: Side, down: Side): boolean {
  return across.shrunk < width || down.shrunk < height;
}

function shrunk(
  picture: Picture,
  size: Size,
  across: Side,
  down: Side,
  kernel: Processor['kernel'],
): Promise<Uint8Array> {
  const smaller = isShrunk(size, across, down)
    ? picture
        // Otherwise libvips would shrink a JPEG while it decodes.
        .extract({ left: 0, top: 0, ...size })
        .resize({ width: across.shrunk, height: down.shrunk, fit: 'fill', kernel: kernel.name })
    : picture;
  return smaller
    .extract({ left: across.from, top: down.from, width: across.count, height: down.count })
    .raw()
    .toBuffer();
}

function tensorOf(
  { pixels, across, down }: Pixels,
  { size, levels }: Processor,
  type: Tensor.Type,
): Tensor {
  const { width, height } = size;
  const area = width * height;
  const isHalf = type === 'float16';
  const data = isHalf ? new Uint16Array(3 * area) : new Float32Array(3 * area);
  const columns = across.taps?.length ?? across.count;
  levels.forEach((ofChannel, channel) => {
    const values = isHalf ? ofChannel.map(float16Of) : ofChannel;
    // Fills with the level of a border.
    data.fill(values[0]!, channel * area, (channel + 1) * area);
    const start = channel * area + down.border * width + across.border;
    for (let row = 0, at = channel; at < pixels.length; row++) {
      const first = start + row * width;
      for (let place = first; place < first + columns; place++, at += 3) {
        data[place] = values[pixels[at]!]!;
      }
    }
  });
  const dims = [1, 3, height, width];
  return data instanceof Uint16Array
    ? new Tensor('float16', data, dims)
    : new Tensor('float32', data, dims);
}

/** Bits of the nearest 16-bit float. Larger positive floats have larger bits. */
function float16Of(value: number): number {
  const size = Math.abs(value);
  let below = 0;
  let above = 0x7c00;
  while (above - below > 1) {
    const middle = (below + above) >> 1;
    [below, above] = numberOfFloat16(middle) <= size ? [middle, above] : [below, middle];
  }
  const isBelow = size - numberOfFloat16(below) <= numberOfFloat16(above) - size;
  return (value < 0 ? 0x8000 : 0) | (isBelow ? below : above);
}

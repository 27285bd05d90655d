import { ServingLoadError } from '../../index.js';
import { isRecord } from '../../doors/options.js';
import { formatValue } from '../../doors/text.js';

export interface Size {
  readonly width: number;
  readonly height: number;
}

/** Preparation of a model's images, from preprocessor_config.json. */
export interface Processor {
  readonly kernel: Kernel;
  resized(image: Size): Size;
  /** Middle part that the model reads. Smaller images get a black border. */
  readonly size: Size;
  /** Numbers of the model for the 256 levels of red, green and blue. */
  readonly levels: readonly Float32Array[];
}

/** Resampling filter of PIL. */
export interface Kernel {
  readonly name: 'linear' | 'cubic' | 'lanczos3';
  /** Pixels from its middle to its end, if an image grows. */
  readonly support: number;
  readonly weight: (distance: number) => number;
}

/**
 * Filters by PIL's number:
 * https://github.com/python-pillow/Pillow/blob/main/src/libImaging/Resample.c
 */
const KERNELS: Readonly<Record<number, Kernel>> = {
  1: {
    name: 'lanczos3',
    support: 3,
    weight: (x) => (Math.abs(x) < 3 ? sinc(x) * sinc(x / 3) : 0),
  },
  2: { name: 'linear', support: 1, weight: (x) => Math.max(0, 1 - Math.abs(x)) },
  3: { name: 'cubic', support: 2, weight: (x) => cubic(Math.abs(x)) },
};

function sinc(x: number): number {
  return x === 0 ? 1 : Math.sin(x * Math.PI) / (x * Math.PI);
}

function cubic(x: number): number {
  if (x < 1) {
    return (1.5 * x - 2.5) * x * x + 1;
  }
  return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

const HALF = { image_mean: 0.5, image_std: 0.5 };
const IMAGENET = { image_mean: [0.485, 0.456, 0.406], image_std: [0.229, 0.224, 0.225] };
const CLIP = {
  image_mean: [0.48145466, 0.4578275, 0.40821073],
  image_std: [0.26862954, 0.26130258, 0.27577711],
};
/** Reads one number as the shorter side's size. */
const SHORTER_SIDE = { default_to_square: false };

const OF_CLIP = {
  size: 224,
  crop_size: 224,
  do_center_crop: true,
  resample: 3,
  ...CLIP,
  ...SHORTER_SIDE,
};
const OF_MOBILE_NET = { ...OF_CLIP, size: 256, resample: 2, ...HALF };

/** Defaults of transformers' processors. */
const DEFAULTS: Readonly<Record<string, Record<string, unknown>>> = {
  Beit: { size: 224, crop_size: 224, resample: 3, ...HALF },
  Bit: OF_CLIP,
  Blip: { size: 384, resample: 3, ...CLIP },
  ChineseCLIP: OF_CLIP,
  CLIP: OF_CLIP,
  ConvNext: { size: 384, crop_pct: 224 / 256, resample: 3, ...HALF, ...SHORTER_SIDE },
  DeiT: { size: 256, crop_size: 224, do_center_crop: true, resample: 3, ...HALF },
  MobileNetV1: OF_MOBILE_NET,
  MobileNetV2: OF_MOBILE_NET,
  Pvt: { size: 224, resample: 3, ...IMAGENET },
  Siglip: { size: { height: 224, width: 224 }, resample: 3, ...HALF, ...SHORTER_SIDE },
  ViT: { size: 224, resample: 2, ...HALF },
};

/**
 * Reads a preparation's settings as transformers does, for processors that resize, crop from the
 * middle, rescale and normalise.
 *
 * @throws ServingLoadError for another processor or step
 */
export function processorOf(name: string, given: Record<string, unknown>, file: string): Processor {
  const type = String(given['image_processor_type'] ?? given['feature_extractor_type']);
  const family = /^(\w+?)(?:ImageProcessor(?:Fast|Pil)?|FeatureExtractor)$/.exec(type)?.[1] ?? '';
  if (!Object.hasOwn(DEFAULTS, family)) {
    throw new ServingLoadError(
      `The images of ${name} are prepared by ${type}, and tasks on images have ` +
        `${Object.keys(DEFAULTS).join(', ')} (with ImageProcessor behind it); use another model, ` +
        'or write its preprocess by hand with defineServing',
    );
  }
  const stated = Object.entries(given).filter(([, value]) => value !== null);
  const config = { ...DEFAULTS[family], ...Object.fromEntries(stated) };
  const refuse = (key: string): never => {
    throw new ServingLoadError(
      `${file} of ${name} has ${key}: ${formatValue(config[key])}, which tasks on ` +
        'images cannot do; use another model, or write its preprocess by hand with defineServing',
    );
  };
  const isOn = (key: string, byDefault: boolean): boolean => {
    const { [key]: value = byDefault } = config;
    return typeof value === 'boolean' ? value : refuse(key);
  };
  const isNeverDone = ['do_pad', 'do_flip_channel_order'].find((key) => isOn(key, false));
  if (isNeverDone !== undefined) {
    refuse(isNeverDone);
  }

  const crop = isOn('do_center_crop', false)
    ? (squareOf(config['crop_size']) ?? refuse('crop_size'))
    : undefined;
  const kernel = KERNELS[Number(config['resample'])] ?? refuse('resample');
  if (!isOn('do_resize', true)) {
    const size = crop ?? refuse('do_resize');
    return { kernel, size, levels: levelsOf(config, isOn, refuse), resized: (image) => image };
  }
  const { resized, size } = resizingOf(family, config) ?? refuse('size');
  if (family === 'ConvNext' && crop) {
    refuse('do_center_crop');
  }
  if (family === 'ConvNext' && !(Number(config['crop_pct']) > 0)) {
    refuse('crop_pct');
  }
  return {
    kernel,
    resized,
    // Images of many sizes could not share a batch.
    size: crop ?? size ?? refuse('do_center_crop'),
    levels: levelsOf(config, isOn, refuse),
  };
}

interface Resizing {
  readonly resized: Processor['resized'];
  /** Undefined if images keep their shape. */
  readonly size?: Size;
}

function resizingOf(family: string, config: Record<string, unknown>): Resizing | undefined {
  const { size, default_to_square: isSquare = true, crop_pct: part } = config;
  const { shortest_edge: shortest, ...others } = isRecord(size)
    ? size
    : { shortest_edge: isSquare ? undefined : size };
  if (!isSize(shortest) || Object.keys(others).length > 0) {
    const isSquareOnly = family !== 'ConvNext' && !isSize(shortest);
    const square = isSquareOnly ? squareOf(size) : undefined;
    return square && { resized: () => square, size: square };
  }
  if (family !== 'ConvNext') {
    return { resized: shorterSide(shortest) };
  }
  const square = { width: shortest, height: shortest };
  const isCut = shortest < 384;
  return {
    resized: isCut ? shorterSide(Math.trunc(shortest / Number(part))) : () => square,
    size: square,
  };
}

function shorterSide(pixels: number): Processor['resized'] {
  return ({ width, height }) =>
    width <= height
      ? { width: pixels, height: Math.trunc((pixels * height) / width) }
      : { width: Math.trunc((pixels * width) / height), height: pixels };
}

function isSize(value: unknown): value is number {
  return Number.isInteger(value) && Number(value) > 0 && Number(value) <= LARGEST_SIDE;
}

const LARGEST_SIDE = 8192;

function squareOf(value: unknown): Size | undefined {
  const { width, height } = isRecord(value) ? value : { width: value, height: value };
  return isSize(width) && isSize(height) ? { width, height } : undefined;
}

/** Numbers of each level, in the precision of Python's steps. */
function levelsOf(
  config: Record<string, unknown>,
  isOn: (key: string, byDefault: boolean) => boolean,
  refuse: (key: string) => never,
): readonly Float32Array[] {
  const { rescale_factor: factor = 1 / 255 } = config;
  const scale = isOn('do_rescale', true) ? factor : 1;
  if (typeof scale !== 'number') {
    return refuse('rescale_factor');
  }
  const each = (key: string): readonly number[] => {
    const value = config[key];
    const numbers: readonly unknown[] = Array.isArray(value) ? value : [value, value, value];
    return numbers.length === 3 && numbers.every((number) => typeof number === 'number')
      ? numbers
      : refuse(key);
  };
  const normalizes = isOn('do_normalize', true);
  const means = normalizes ? each('image_mean') : [0, 0, 0];
  const deviations = normalizes ? each('image_std') : [1, 1, 1];
  const levels = Float32Array.from({ length: 256 }, (_, level) => level * scale);
  return means.map((mean, channel) =>
    levels
      .map((value) => value - Math.fround(mean))
      .map((value) => value / Math.fround(deviations[channel]!)),
  );
}

export interface Side {
  /** Pixels that libvips makes of it: fewer, or all. */
  readonly shrunk: number;
  /** First of these that we need, and how many. */
  readonly from: number;
  readonly count: number;
  readonly taps?: readonly Tap[];
  /** Pixels of black border before them. */
  readonly border: number;
}

/** Pixels that make one of a larger image; weights in units of 2 ** -22. */
interface Tap {
  readonly from: number;
  readonly weights: readonly number[];
}

/**
 * Cuts the middle as transformers' `center_crop`. Images grow by PIL's algorithm; libvips would
 * shift them by a part of a pixel.
 */
export function sideOf(processor: Processor, image: Size, side: keyof Size): Side {
  const { [side]: source } = image;
  const { [side]: resized } = processor.resized(image);
  const { [side]: size } = processor.size;
  const start = Math.max(0, Math.floor((resized - size) / 2));
  const count = Math.min(resized, size);
  const border = Math.max(0, Math.ceil((size - resized) / 2));
  if (resized <= source) {
    return { shrunk: resized, from: start, count, border };
  }
  const all = Array.from({ length: count }, (_, i) =>
    tapOf((start + i + 0.5) * (source / resized), source, processor.kernel),
  );
  const { from } = all[0]!;
  const last = all.at(-1)!;
  return {
    shrunk: source,
    from,
    count: last.from + last.weights.length - from,
    taps: all.map((tap) => ({ ...tap, from: tap.from - from })),
    border,
  };
}

function tapOf(center: number, source: number, { support, weight }: Kernel): Tap {
  const from = Math.max(0, Math.trunc(center - support + 0.5));
  const to = Math.min(source, Math.trunc(center + support + 0.5));
  const weights = Array.from({ length: to - from }, (_, i) => weight(from + i - center + 0.5));
  const sum = weights.reduce((total, each) => total + each, 0);
  return {
    from,
    weights: weights.map((each) => {
      const share = (each / sum) * 2 ** PRECISION;
      return Math.trunc(share < 0 ? share - 0.5 : share + 0.5);
    }),
  };
}

const PRECISION = 22;
const ROUNDING = 2 ** (PRECISION - 1);

/** Enlarges RGB pixels as PIL does: across, then down. */
export function grown(pixels: Uint8Array, across: Side, down: Side): Uint8Array {
  const wide = across.taps ? grownAlong(pixels, down.count, across.count, 3, across.taps) : pixels;
  const width = across.taps?.length ?? across.count;
  return down.taps ? grownAlong(wide, 1, down.count, width * 3, down.taps) : wide;
}

/** Enlarges lines of `length` groups of `group` numbers. */
function grownAlong(
  pixels: Uint8Array,
  lines: number,
  length: number,
  group: number,
  taps: readonly Tap[],
): Uint8Array {
  const larger = new Uint8ClampedArray(lines * taps.length * group);
  let at = 0;
  for (let line = 0; line < lines; line++) {
    for (const { from, weights } of taps) {
      const start = (line * length + from) * group;
      for (let place = start; place < start + group; place++) {
        let sum = ROUNDING;
        for (let i = 0; i < weights.length; i++) {
          sum += weights[i]! * pixels[place + i * group]!;
        }
        larger[at++] = sum >> PRECISION;
      }
    }
  }
  return new Uint8Array(larger.buffer);
}

/** Settings from preprocessor_config.json. */
export interface MelOptions {
  /** Rows of the spectrogram: 80 or 128. */
  readonly bands: number;
  readonly sampleRate: number;
  /** Samples of a frame, and from one to the next. */
  readonly frame: number;
  readonly hop: number;
  /** Samples of a window. */
  readonly window: number;
}

/** Power below which audio is silent. */
const FLOOR = 1e-10;

/**
 * Makes log-mel spectrograms as Whisper's models read them:
 * https://github.com/huggingface/transformers/blob/main/src/transformers/models/whisper/feature_extraction_whisper.py
 */
export class LogMel {
  private readonly hann: Float64Array;
  private readonly bands: readonly Band[];
  private readonly transform: FourierTransform;

  constructor(private readonly options: MelOptions) {
    const { frame } = options;
    this.hann = Float64Array.from(
      { length: frame },
      (_, at) => 0.5 - 0.5 * Math.cos((2 * Math.PI * at) / frame),
    );
    this.bands = bandsOf(options);
    this.transform = new FourierTransform(frame);
  }

  /**
   * Spectrogram `[bands, frames]` of one window.
   *
   * @param samples from -1 to 1; silence follows to the end of the window
   */
  spectrogram(samples: Float32Array): Float32Array {
    const { frame, hop, window } = this.options;
    const frames = window / hop;
    const features = new Float32Array(this.bands.length * frames).fill(Math.log10(FLOOR));
    const around = mirrored(samples, window, frame / 2);
    const audible = Math.min(frames, Math.ceil((samples.length + frame / 2) / hop) + 1);
    const power = new Float64Array(frame / 2 + 1);
    const { hann, transform } = this;
    for (let one = 0; one < audible; one += 2) {
      // Transforms two frames at a time; the last may be alone.
      for (let i = 0, at = one * hop; i < frame; i++, at++) {
        transform.real[i] = hann[i]! * around[at]!;
        transform.imaginary[i] = hann[i]! * (around[at + hop] ?? 0);
      }
      transform.run();
      for (let row = 0; row < 2 && one + row < frames; row++) {
        transform.powers(row, power);
        this.addFrame(power, one + row, frames, features);
      }
    }
    let loudest = -Infinity;
    for (const value of features) {
      loudest = Math.max(loudest, value);
    }
    return features.map((value) => (Math.max(value, loudest - 8) + 4) / 4);
  }

  private addFrame(power: Float64Array, at: number, frames: number, features: Float32Array): void {
    this.bands.forEach(({ from, weights }, band) => {
      let sum = 0;
      for (let i = 0; i < weights.length; i++) {
        sum += weights[i]! * power[from + i]!;
      }
      features[band * frames + at] = Math.log10(Math.max(FLOOR, sum));
    });
  }
}

/** Window with a margin, which mirrors the first and last samples. */
function mirrored(samples: Float32Array, window: number, margin: number): Float32Array {
  const around = new Float32Array(window + 2 * margin);
  around.set(samples.subarray(0, window), margin);
  for (let at = 1; at <= margin; at++) {
    around[margin - at] = around[margin + at]!;
    around[margin + window - 1 + at] = around[margin + window - 1 - at]!;
  }
  return around;
}

interface Band {
  /** First bin of the transform. */
  readonly from: number;
  readonly weights: Float64Array;
}

const MOST_HERTZ = 8000;

/** Triangles of equal energy on Slaney's mel scale, as `librosa.filters.mel` makes them. */
function bandsOf({ bands, sampleRate, frame }: MelOptions): readonly Band[] {
  const most = melOf(MOST_HERTZ);
  const corners = Array.from({ length: bands + 2 }, (_, i) => hertzOf((most * i) / (bands + 1)));
  const bins = Array.from({ length: frame / 2 + 1 }, (_, bin) => (bin * sampleRate) / frame);
  return Array.from({ length: bands }, (_, band) => {
    const [left, centre, right] = corners.slice(band, band + 3) as [number, number, number];
    const weights = bins.map((hertz) =>
      Math.max(0, Math.min((hertz - left) / (centre - left), (right - hertz) / (right - centre))),
    );
    const from = weights.findIndex((weight) => weight > 0);
    const to = weights.findLastIndex((weight) => weight > 0) + 1;
    const energy = 2 / (right - left);
    return {
      from: Math.max(0, from),
      weights: Float64Array.from(weights.slice(Math.max(0, from), to), (each) => each * energy),
    };
  });
}

/** Step of the mel scale: linear up to 1000 Hz (15 mel), then logarithmic. */
const LOG_STEP = Math.log(6.4) / 27;

function melOf(hertz: number): number {
  return hertz < 1000 ? (3 * hertz) / 200 : 15 + Math.log(hertz / 1000) / LOG_STEP;
}

function hertzOf(mel: number): number {
  return mel < 15 ? (200 * mel) / 3 : 1000 * Math.exp(LOG_STEP * (mel - 15));
}

/**
 * Discrete Fourier transform of two real rows at a time, by Cooley and Tukey's algorithm for any
 * factors (1965). Whisper's frames have 400 samples, and libraries for JavaScript need powers of 2.
 */
export class FourierTransform {
  readonly real: Float64Array;
  readonly imaginary: Float64Array;
  private readonly outReal: Float64Array;
  private readonly outImaginary: Float64Array;
  /** Place of each number before the first pass. */
  private readonly order: readonly number[];
  private readonly passes: readonly Pass[];

  constructor(private readonly size: number) {
    const numbers = (): Float64Array => new Float64Array(size);
    [this.real, this.imaginary] = [numbers(), numbers()];
    [this.outReal, this.outImaginary] = [numbers(), numbers()];
    const factors = factorsOf(size);
    this.order = orderOf(0, 1, factors);
    const passes = factors.map((parts, i) =>
      passOf(
        parts,
        factors.slice(i + 1).reduce((product, factor) => product * factor, 1),
      ),
    );
    this.passes = passes.toReversed();
  }

  run(): void {
    const { real, imaginary, outReal, outImaginary, order } = this;
    for (let i = 0; i < this.size; i++) {
      outReal[i] = real[order[i]!]!;
      outImaginary[i] = imaginary[order[i]!]!;
    }
    this.passes.forEach((pass) => this.join(pass));
  }

  /** Joins transforms of `parts` neighbours, `part` numbers each. */
  private join({ parts, part, cosines, sines, joinedReal, joinedImaginary }: Pass): void {
    const { size, outReal, outImaginary } = this;
    for (let from = 0; from < size; from += parts * part) {
      let turn = 0;
      for (let at = from; at < from + part; at++) {
        for (let result = 0; result < parts; result++) {
          let real = 0;
          let imaginary = 0;
          for (let i = 0, other = at; i < parts; i++, other += part, turn++) {
            const a = outReal[other]!;
            const b = outImaginary[other]!;
            const cosine = cosines[turn]!;
            const sine = sines[turn]!;
            real += a * cosine + b * sine;
            imaginary += b * cosine - a * sine;
          }
          joinedReal[result] = real;
          joinedImaginary[result] = imaginary;
        }
        for (let result = 0, other = at; result < parts; result++, other += part) {
          outReal[other] = joinedReal[result]!;
          outImaginary[other] = joinedImaginary[result]!;
        }
      }
    }
  }

  /** Squared size of each frequency of the first (0) or second row (1), up to the middle. */
  powers(row: number, into: Float64Array): void {
    const { size, outReal, outImaginary } = this;
    const sign = row === 0 ? 1 : -1;
    for (let bin = 0; bin < into.length; bin++) {
      const other = bin === 0 ? 0 : size - bin;
      const real = outReal[bin]! + sign * outReal[other]!;
      const imaginary = outImaginary[bin]! - sign * outImaginary[other]!;
      into[bin] = (real * real + imaginary * imaginary) / 4;
    }
  }
}

interface Pass {
  readonly parts: number;
  readonly part: number;
  /** Ordered by place, result and part. */
  readonly cosines: Float64Array;
  readonly sines: Float64Array;
  readonly joinedReal: Float64Array;
  readonly joinedImaginary: Float64Array;
}

function passOf(parts: number, part: number): Pass {
  const angles = Float64Array.from({ length: part * parts * parts }, (_, turn) => {
    const i = turn % parts;
    const result = Math.floor(turn / parts) % parts;
    const at = Math.floor(turn / parts ** 2);
    return (2 * Math.PI * ((i * (at + result * part)) % (parts * part))) / (parts * part);
  });
  return {
    parts,
    part,
    cosines: angles.map(Math.cos),
    sines: angles.map(Math.sin),
    joinedReal: new Float64Array(parts),
    joinedImaginary: new Float64Array(parts),
  };
}

/** Every `stride`-th place from `from` on, in the order that the passes join. */
function orderOf(from: number, stride: number, factors: readonly number[]): number[] {
  const [parts, ...others] = factors;
  if (parts === undefined) {
    return [from];
  }
  return Array.from({ length: parts }, (_, i) =>
    orderOf(from + i * stride, stride * parts, others),
  ).flat();
}

/** Factors, largest first. */
function factorsOf(size: number): number[] {
  for (let factor = 2; factor <= size; factor++) {
    if (size % factor === 0) {
      return [...factorsOf(size / factor), factor];
    }
  }
  return [];
}

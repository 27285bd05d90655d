import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import { join } from 'node:path';
import { setImmediate } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import * as tokenizers from '@huggingface/tokenizers';
import { afterEach, beforeEach, describe, expect, it, jest } from '@jest/globals';
import {
  createServing,
  InvalidInputError,
  InvalidServingError,
  type LocalServing,
  OverloadedError,
  RequestTooLargeError,
} from 'nestjs-serving';
import {
  type SpeechToTextOptions,
  type SpeechToWrite,
  speechToText,
  type Transcript,
  type TranscriptWindow,
} from 'nestjs-serving/tasks';
import { AudioReader } from '../../../lib/extensions/tasks/audio.js';
import { LogMel } from '../../../lib/extensions/tasks/log-mel.js';
import { nextToken, partsOf, samplerOf } from '../../../lib/extensions/tasks/transcriber.js';
import { wordsOf } from '../../../lib/extensions/tasks/word-times.js';
import { describeUnless } from '../../fixtures/describe-unless.js';
import { missing } from '../../fixtures/http/server-process.js';
import { until } from '../../fixtures/async/streams.js';
import { silenceLog } from '../../fixtures/silent-log.js';
import { readTiny, tinyFiles } from '../../fixtures/tasks/tiny-models.js';

/** Python's word; times are null if its rounding decides. */
type Word = readonly [text: string, start: number | null, end: number | null];

const { cases, prompted, split, mel } = JSON.parse(readTiny('speech/answers.json').toString()) as {
  readonly cases: readonly {
    readonly from: number;
    readonly to: number;
    readonly asked: string | null;
    readonly task: 'transcribe' | 'translate';
    readonly language: string;
    readonly segments: readonly (readonly [text: string, start: number, end: number])[];
    /** The tokens of each window. */
    readonly tokens: readonly (readonly number[])[];
    readonly windows: readonly (readonly [
      start: number,
      logprob: number,
      compressionRatio: number,
      silence: number,
    ])[];
    readonly words: readonly Word[];
  }[];
  readonly prompted: readonly {
    readonly from: number;
    readonly to: number;
    readonly prompt: string | false;
    readonly previousText: boolean;
    readonly segments: readonly (readonly [text: string, start: number, end: number])[];
    readonly words: readonly Word[];
  }[];
  /** Python's words of texts. */
  readonly split: readonly {
    readonly tokens: readonly number[];
    readonly language: string;
    readonly words: readonly string[];
  }[];
  readonly mel: readonly number[];
};

const folder = fileURLToPath(new URL('../../fixtures/tasks/speech', import.meta.url));
const clip = readFileSync('sample/03-audio-streams/clip/speech.wav');
const samples = Float32Array.from(
  new Int16Array(clip.buffer.slice(clip.byteOffset + 44, clip.byteOffset + clip.length)),
  (value) => value / 32_768,
);

const json = (name: string) =>
  JSON.parse(readTiny(`speech/${name}`).toString()) as Record<string, unknown>;

const isFolder = (name: string): boolean => name.startsWith('nestjs-serving-audio-');

type Speech = Uint8Array | Float32Array | SpeechToWrite;

const started: { close(): Promise<void> }[] = [];
beforeEach(() => silenceLog());
afterEach(async () => {
  await Promise.all(started.splice(0).map((serving) => serving.close()));
});

async function launch(
  options: Partial<SpeechToTextOptions> = {},
): Promise<LocalServing<Speech, Transcript>> {
  // Python's likeliest tokens. Those of random weights are so unlikely that others would be drawn.
  const likeliest = { temperature: 0 };
  const serving = createServing(
    speechToText({ name: 'ear', model: folder, ...likeliest, ...options }),
  );
  started.push(serving);
  await serving.start();
  return serving;
}

function filesWith(
  others: Record<string, object | undefined>,
): Record<string, Uint8Array | string> {
  const paths = [
    'config.json',
    'generation_config.json',
    'preprocessor_config.json',
    'tokenizer.json',
  ];
  const onnx = ['onnx/encoder_model.onnx', 'onnx/decoder_model_merged.onnx'];
  return tinyFiles('speech', [...paths, ...onnx], others);
}

function inputOf({ from, to, asked, task }: (typeof cases)[number]): SpeechToWrite {
  return { audio: samples.slice(from, to), task, ...(asked !== null && { language: asked }) };
}

/** Python's segments as ours: without spaces around their texts, and without empty ones. */
function segmentsOf({ segments }: Pick<(typeof cases)[number], 'segments'>): object[] {
  return segments
    .map(([text, start, end]) => ({ text: text.trim(), start, end }))
    .filter(({ text }) => text !== '');
}

/** Python's words as ours: without spaces around their texts. */
function wordsLike({ words }: Pick<(typeof cases)[number], 'words'>): object[] {
  return words.map(([text, start, end]) => ({
    text: text.trim(),
    start: start ?? expect.any(Number),
    end: end ?? expect.any(Number),
  }));
}

function isPoor({ logprob, compressionRatio }: TranscriptWindow): boolean {
  return logprob < -1 || compressionRatio > 2.4;
}

describe('speechToText', () => {
  it("[22.16] hears Python's text, times and language, alone and beside others", async () => {
    const serving = await launch();
    const together = await Promise.all(cases.map((each) => serving.batchedRun(inputOf(each))));
    expect(
      together.map(({ segments }) =>
        segments.map(({ text, start, end }) => ({ text, start, end })),
      ),
    ).toEqual(cases.map(segmentsOf));
    expect(together.map(({ language }) => language)).toEqual(cases.map(({ language }) => language));
    const alone: Transcript[] = [];
    for (const each of cases) {
      alone.push(await serving.batchedRun(inputOf(each)));
    }
    expect(alone).toEqual(together);
  });

  it("[22.16] gives Python's tokens, and how well it heard each window", async () => {
    const serving = await launch();
    let seen = 0;
    for (const each of cases) {
      const { segments } = await serving.batchedRun(inputOf(each));
      for (const { tokens, window } of segments) {
        const at = each.windows.findIndex(([start]) => start === window.start);
        const [, logprob, compressionRatio, silence] = each.windows[at]!;
        expect(window.logprob).toBeCloseTo(logprob, 4);
        // Node's zlib packs short texts less tightly.
        expect(window.compressionRatio).toBeGreaterThan(0.8 * compressionRatio - 1e-9);
        expect(window.compressionRatio).toBeLessThan(compressionRatio + 1e-9);
        expect(window.silence / silence).toBeCloseTo(1, 3);
        expect(` ${each.tokens[at]!.join(' ')} `).toContain(` ${tokens.join(' ')} `);
        seen++;
      }
    }
    expect(seen).toBeGreaterThan(20);
  });

  it('[22.16] A language is its code or a name, as clients write it', async () => {
    const serving = await launch();
    const audio = samples.subarray(0, 16_000);
    const inFrench = await serving.batchedRun({ audio, language: 'fr' });
    for (const language of ['French', 'FRENCH', 'fr-CA', 'fr_FR', '<|fr|>']) {
      expect(await serving.batchedRun({ audio, language })).toEqual(inFrench);
    }
    const german = serving.batchedRun({ audio, language: 'German' });
    await expect(german).resolves.toMatchObject({ language: 'de' });
    await expect(serving.batchedRun({ audio, language: 'Klingon' })).rejects.toThrow(
      'was given the language "Klingon", and its model has',
    );
  });

  it('[22.16] streams what each window says, before the rest is heard', async () => {
    const serving = await launch({ language: 'en' });
    const pieces: Transcript[] = [];
    for await (const { output } of serving.stream(samples)) {
      pieces.push(output);
    }
    const whole = await serving.batchedRun(samples);
    expect(pieces.length).toBeGreaterThan(1);
    expect(pieces.flatMap(({ segments }) => segments)).toEqual(whole.segments);
    expect(
      pieces
        .map(({ text }) => text)
        .join('')
        .trim(),
    ).toBe(whole.text);
    expect(whole.duration).toBeCloseTo(samples.length / 16_000, 6);
  });

  it('[22.16] makes the spectrogram of Python', () => {
    const options = { bands: 80, sampleRate: 16_000, frame: 400, hop: 160, window: 64_000 };
    const ours = new LogMel(options).spectrogram(samples.subarray(0, 64_000));
    const apart = mel.map((value, i) => Math.abs(value - ours[i * 37]!));
    expect(mel.length).toBeGreaterThan(800);
    expect(Math.max(...apart)).toBeLessThan(1e-4);
  });

  it("[22.29] gives Python's times of words, and none to a call that does not ask", async () => {
    const serving = await launch();
    let timed = 0;
    for (const each of cases) {
      const { segments } = await serving.batchedRun({ ...inputOf(each), words: true });
      expect(segments.flatMap((segment) => segment.words!)).toEqual(wordsLike(each));
      timed += each.words.filter(([, start]) => start !== null).length;
      const plain = await serving.batchedRun(inputOf(each));
      expect(plain.segments).toEqual(segments.map((segment) => ({ ...segment, words: undefined })));
    }
    expect(timed).toBeGreaterThan(50);
  });

  it.each(split)(
    '[22.29] splits into the words of Python: $words',
    ({ tokens, language, words }) => {
      const { Tokenizer } = tokenizers;
      const tokenizer = new Tokenizer(json('tokenizer.json'), {});
      const decode = (ids: readonly number[]) => tokenizer.decode([...ids]);
      const found = wordsOf(tokens, decode, language);
      expect(found.map(({ text }) => text)).toEqual(words);
      expect(found.flatMap(({ from, to }) => [from, to])).toEqual([
        0,
        ...found.slice(1).flatMap(({ from }) => [from, from]),
        tokens.length,
      ]);
    },
  );

  it.each([
    ['no heads', { alignment_heads: undefined }],
    ['heads of a layer without an output', { alignment_heads: [[7, 0]] }],
  ])('[22.29] refuses words in words if the model has %s', async (_, others) => {
    const generation = { ...json('generation_config.json'), ...others };
    const serving = await launch({
      model: { from: filesWith({ 'generation_config.json': generation }) },
    });
    const audio = samples.subarray(0, 16_000);
    const refused = serving.batchedRun({ audio, words: true });
    await expect(refused).rejects.toThrow(InvalidInputError);
    await expect(refused).rejects.toThrow(/gives no times of words: it needs alignment_heads in/);
    await expect(serving.batchedRun(audio)).resolves.toMatchObject({ language: 'fr' });
  });

  it('[22.29] A head that the decoder does not have fails the call, not its neighbour', async () => {
    const generation = { ...json('generation_config.json'), alignment_heads: [[0, 9]] };
    const serving = await launch({
      model: { from: filesWith({ 'generation_config.json': generation }) },
    });
    const audio = samples.subarray(0, 16_000);
    const [timed, plain] = [serving.batchedRun({ audio, words: true }), serving.batchedRun(audio)];
    await expect(timed).rejects.toThrow('alignment_heads names head 9 of layer 0, and it has 2');
    await expect(plain).resolves.toMatchObject({ language: 'fr' });
  });

  it.each(prompted)(
    '[22.30] hears as Python does behind a prompt ($prompt) and the text before ($previousText)',
    async ({ from, to, prompt, previousText, ...expected }) => {
      const serving = await launch();
      const { segments } = await serving.batchedRun({
        audio: samples.slice(from, to),
        language: 'en',
        words: true,
        previousText,
        ...(prompt !== false && { prompt }),
      });
      expect(segments.map(({ text, start, end }) => ({ text, start, end }))).toEqual(
        segmentsOf(expected),
      );
      expect(segments.flatMap((segment) => segment.words!)).toEqual(wordsLike(expected));
    },
  );

  it('[22.34] Samples that are no sound, and a model that gives no numbers, fail their call alone', async () => {
    const serving = await launch();
    const audio = samples.subarray(0, 16_000);
    const whole = Float32Array.from(audio, (sample) => sample * 32_768);
    for (const [given, named] of [
      [audio.with(9000, NaN), 'the sample NaN'],
      [audio.with(0, -Infinity), 'the sample -Infinity'],
      [whole, 'divided by 32768'],
    ] as const) {
      const [refused, other] = await Promise.allSettled([
        serving.batchedRun(given),
        serving.batchedRun(audio),
      ]);
      expect(refused).toMatchObject({
        reason: { code: 'SERVING_INVALID_INPUT', message: expect.stringContaining(named) },
      });
      expect(other).toMatchObject({ value: { language: 'fr' } });
    }
    const weights = readTiny('speech/onnx/encoder_model.onnx');
    weights.set(new Uint8Array(new Float32Array(100).fill(NaN).buffer), 60_000);
    const broken = await launch({
      model: { from: filesWith({ 'onnx/encoder_model.onnx': weights }) },
    });
    await expect(broken.batchedRun(audio)).rejects.toMatchObject({
      code: 'SERVING_INVALID_OUTPUT',
      message: expect.stringContaining('no usable number'),
    });
  });

  it('[22.33] refuses an option that no call has', async () => {
    const serving = await launch();
    const audio = samples.subarray(0, 16_000);
    await expect(serving.batchedRun({ audio, langauge: 'de' } as SpeechToWrite)).rejects.toThrow(
      'was given the unknown option "langauge"; known are language, task, prompt, previousText, temperature, words',
    );
  });

  it('[22.30] refuses prompts that the model cannot follow', async () => {
    const serving = await launch();
    const audio = samples.subarray(0, 16_000);
    const refused: readonly (readonly [unknown, new () => Error, RegExp])[] = [
      [
        '<|en|> hello',
        InvalidInputError,
        /prompt: .*given a text with "<\|en\|>", a special token of its model; take it out$/,
      ],
      ['at <|0.02|>', InvalidInputError, /prompt: .*given a text with "<\|0.02\|>"/],
      ['x'.repeat(200), RequestTooLargeError, /prompt: .*at most 23 tokens, and one has/],
      ['x'.repeat(100_000), RequestTooLargeError, /100000 characters/],
      [5, InvalidInputError, /was given the prompt 5; allowed is a text/],
    ];
    for (const [prompt, type, message] of refused) {
      const call = serving.batchedRun({ audio, prompt } as SpeechToWrite);
      await expect(call).rejects.toThrow(message);
      await expect(call).rejects.toBeInstanceOf(type);
    }
    await expect(serving.batchedRun({ audio, prompt: '  ' })).resolves.toEqual(
      await serving.batchedRun(audio),
    );
  });

  it('[22.30] A model that follows on no text says so', async () => {
    const tokenizer = json('tokenizer.json') as { added_tokens: { content: string }[] };
    const added = tokenizer.added_tokens.filter(({ content }) => content !== '<|startofprev|>');
    const serving = await launch({
      model: { from: filesWith({ 'tokenizer.json': { ...tokenizer, added_tokens: added } }) },
    });
    const audio = samples.subarray(0, 16_000);
    for (const asked of [{ prompt: 'Names' }, { previousText: true }]) {
      await expect(serving.batchedRun({ audio, ...asked })).rejects.toThrow(
        /has no token <\|startofprev\|>, so it follows on no text; leave out prompt and previousText/,
      );
    }
  });

  it('[22.31] A window is read again at higher temperatures while its text is poor', async () => {
    const serving = await launch({ temperature: undefined });
    let poorOnes = 0;
    for (const each of cases) {
      const { segments } = await serving.batchedRun(inputOf(each));
      expect(await serving.batchedRun(inputOf(each))).toMatchObject({ segments });
      const first = await serving.batchedRun({ ...inputOf(each), temperature: 0 });
      // Later windows begin elsewhere if the first one's text is another.
      const [one, other] = [first.segments[0]?.window, segments[0]?.window];
      if (one && other && isPoor(one) && one.start === other.start) {
        expect(other.temperature).toBeGreaterThan(0);
        expect(!isPoor(other) || other.temperature === 1).toBe(true);
        poorOnes++;
      }
    }
    expect(poorOnes).toBeGreaterThan(5);
  });

  it('[22.31] The text of a high temperature is no text that the next window follows on', async () => {
    const serving = await launch({ language: 'en' });
    const hear = (temperature: number | number[], previousText: boolean) =>
      serving.batchedRun({ audio: samples, temperature, previousText });
    expect(await hear(0.6, true)).toEqual(await hear(0.6, false));
    expect(await hear(0.5, true)).not.toEqual(await hear(0.5, false));
    expect(await hear([0, 0], false)).toEqual(await hear(0, false));
  });

  it.each([-0.1, 1.1, NaN, '0', [], [2], Array<number>(17).fill(0)])(
    '[22.31] refuses the temperature %j',
    async (temperature) => {
      const serving = await launch();
      const asked = { audio: samples.subarray(0, 16_000), temperature } as SpeechToWrite;
      await expect(serving.batchedRun(asked)).rejects.toThrow(
        /was given the temperature .*; allowed is a number from 0 to 1, or a list of 1 to 16/,
      );
      expect(() =>
        speechToText({ name: 'ear', model: folder, temperature: temperature as number }),
      ).toThrow(/option "temperature" is .*; allowed is a number from 0 to 1/);
    },
  );

  it('[22.17] refuses what is no speech, for its caller alone', async () => {
    const serving = await launch({ maxSeconds: 5, maxBytes: 100_000 });
    const audio = samples.slice(0, 16_000);
    const refused: readonly (readonly [unknown, new () => Error, RegExp])[] = [
      [new Uint8Array(0), InvalidInputError, /takes the bytes of a file, samples, or/],
      ['speech.wav', InvalidInputError, /was given "speech.wav"/],
      [null, InvalidInputError, /was given null/],
      [{ audio: [1, 2] }, InvalidInputError, /takes the bytes of a file/],
      [{ audio, language: 'xx' }, InvalidInputError, /language "xx", and its model has en, de, fr/],
      [{ audio, task: 'sing' }, InvalidInputError, /task "sing"; allowed is "transcribe"/],
      [new Float32Array(16_000 * 5 + 1), RequestTooLargeError, /at most 5 seconds of audio/],
      [new Uint8Array(100_001), RequestTooLargeError, /at most 100000 bytes, and was given 100001/],
    ];
    const good = serving.batchedRun(audio);
    for (const [input, type, message] of refused) {
      const call = serving.batchedRun(input as Speech);
      await expect(call).rejects.toThrow(message);
      await expect(call).rejects.toBeInstanceOf(type);
    }
    await expect(good).resolves.toMatchObject({ language: 'fr' });
  });

  it('[22.17] says what is missing if ffmpeg is not on the PATH', () => {
    const script = `(async () => {
      const { createServing } = await import('nestjs-serving');
      const { speechToText } = await import('nestjs-serving/tasks');
      const serving = createServing(speechToText({ name: 'ear', model: ${JSON.stringify(folder)} }));
      await serving.start();
      const error = await serving.batchedRun(new Uint8Array(8)).catch((thrown) => thrown);
      console.log(error.code, error.message);
      await serving.close();
    })()`;
    const said = execFileSync(process.execPath, ['-e', script], {
      env: { PATH: tmpdir() },
    }).toString();
    expect(said).toMatch(
      /SERVING_UNAVAILABLE .* by the program ffmpeg, which is not on the PATH; install it, or send/,
    );
  });

  it.each([
    [{ batchSize: 0 }, /option "batchSize" is 0/],
    [{ maxSeconds: 0 }, /option "maxSeconds" is 0/],
    [{ model: { from: folder, file: 'x' } }, /"model.file" is "x"; allowed is nothing here/],
    [{ model: { from: folder, isolation: 'none' } }, /"model.isolation" is "none"/],
    [
      { model: { from: folder, session: { executionProviders: ['cuda'] } } },
      /no provider but the CPU/,
    ],
    [{ model: { from: folder, blockingLimit: 5 } }, /"model.blockingLimit" is 5/],
  ])('[22.17] refuses the options %j', (options, message) => {
    const make = () => speechToText({ name: 'ear', model: folder, ...(options as object) });
    expect(make).toThrow(InvalidServingError);
    expect(make).toThrow(message);
  });

  it.each([
    [{ 'generation_config.json': undefined }, /has no generation_config.json/],
    [{ 'generation_config.json': {} }, /don't state no_timestamps_token_id/],
    [{ 'config.json': { ...json('config.json'), median_filter_width: 6 } }, /median_filter_width/],
    [
      { 'onnx/encoder_model.onnx': undefined },
      /has no onnx\/encoder_model.onnx; name its ONNX file: model: { from: ..., encoder: /,
    ],
    [
      { 'onnx/decoder_model_merged.onnx': undefined },
      /has no onnx\/decoder_model_merged.onnx;.*, decoder: /,
    ],
  ])('[22.17] fails the start with the remedy for the files %j', async (others, message) => {
    const starting = launch({ model: { from: filesWith(others) } });
    await expect(starting).rejects.toThrow(message);
  });

  it('[22.17] refuses a decoder without a cache at the start', async () => {
    const files = { ...filesWith({}) };
    files['onnx/decoder_model_merged.onnx'] = files['onnx/encoder_model.onnx']!;
    const starting = launch({ model: { from: files } });
    await expect(starting).rejects.toThrow(/has no input input_ids.*decoder_model_merged.onnx/);
  });

  it('[FQ11] A model for English alone takes en as its language', async () => {
    const only = { lang_to_id: undefined, task_to_id: undefined };
    const serving = await launch({
      model: {
        from: filesWith({
          'generation_config.json': { ...json('generation_config.json'), ...only },
          'config.json': { ...json('config.json'), ...only },
        }),
      },
    });
    const audio = new Float32Array(16_000);
    expect(await serving.batchedRun({ audio, language: 'en' })).toEqual(
      await serving.batchedRun({ audio }),
    );
    await expect(serving.batchedRun({ audio, language: 'de' })).rejects.toThrow('has en alone');
  });

  it('[22.17] refuses a language of the options that the model lacks', async () => {
    await expect(launch({ language: 'xx' })).rejects.toThrow(/language "xx"/);
  });

  it('[22.17] frees the place of a caller that leaves', async () => {
    const serving = await launch({ batchSize: 1 });
    const long = new Float32Array(16_000 * 60);
    for (let at = 0; at < long.length; at += samples.length) {
      long.set(samples.subarray(0, Math.min(samples.length, long.length - at)), at);
    }
    const controller = new AbortController();
    const left = serving.batchedRun(long, { signal: controller.signal });
    const other = serving.batchedRun(samples.slice(0, 16_000));
    controller.abort();
    await expect(left).rejects.toThrow();
    await expect(other).resolves.toMatchObject({ language: 'fr' });
  });
});

/** A file of 16-bit samples. */
function wav(count: number, rate: number): Buffer {
  const file = Buffer.concat([clip.subarray(0, 44), Buffer.alloc(count * 2)]);
  file.writeUInt32LE(36 + count * 2, 4);
  file.writeUInt16LE(1, 22);
  file.writeUInt32LE(rate, 24);
  file.writeUInt32LE(rate * 2, 28);
  file.writeUInt16LE(2, 32);
  file.writeUInt32LE(count * 2, 40);
  return file;
}

describeUnless(missing('ffmpeg'), 'speechToText with files', () => {
  it('[22.16] hears a file as its samples, also one that was compressed or has two channels', async () => {
    const serving = await launch();
    const expected = await serving.batchedRun(samples);
    await expect(serving.batchedRun(clip)).resolves.toEqual(expected);
    const formats = [
      ['-f', 'flac'],
      ['-ac', '2', '-f', 'wav'],
      ['-c:a', 'pcm_s24le', '-f', 'matroska'],
    ];
    for (const format of formats) {
      const args = ['-loglevel', 'error', '-i', 'pipe:0', ...format, 'pipe:1'];
      const file = execFileSync('ffmpeg', args, { input: clip });
      const heard = await serving.batchedRun(file);
      expect(heard.segments.map(({ text }) => text)).toEqual(
        expected.segments.map(({ text }) => text),
      );
    }
  });

  it('[22.16] hears a file in a process, with which it shares no memory', async () => {
    const serving = await launch({ model: { from: folder, isolation: 'process' } });
    await expect(serving.batchedRun(clip)).resolves.toEqual(await serving.batchedRun(samples));
  });

  it('[22.17] refuses bytes without audio, and files that are too long', async () => {
    const serving = await launch({ maxSeconds: 3 });
    for (const bytes of [
      Buffer.from('no audio at all'),
      clip.subarray(0, 44),
      clip.subarray(0, 20),
    ]) {
      const call = serving.batchedRun(bytes);
      await expect(call).rejects.toThrow(/bytes that ffmpeg cannot read as audio: \w+/);
      await expect(call).rejects.toBeInstanceOf(InvalidInputError);
    }
    await expect(serving.batchedRun(clip)).rejects.toBeInstanceOf(RequestTooLargeError);
  });

  it('[FZ4] A small file with very much audio is refused, before its samples fill the memory', async () => {
    const serving = await launch();
    for (const file of [wav(1790, 1), wav(600, 2)]) {
      const call = serving.batchedRun(file);
      await expect(call).rejects.toBeInstanceOf(RequestTooLargeError);
      await expect(call).rejects.toThrow(
        /takes 64 bytes or more for each second after the first 60/,
      );
    }
  });

  it('[FZ4] Files that wait are refused beyond the memory for all of them, before they are decoded and while they are', async () => {
    // A half minute of samples has 1.92 MB, its file the half of it.
    const file = wav(16_000 * 30, 16_000);
    const serving = await launch({ batchSize: 1, queue: { maxCost: 5_000_000 } });
    const outcomes = await Promise.allSettled(
      Array.from({ length: 20 }, () => serving.batchedRun(file)),
    );
    const refused = outcomes.flatMap((each) => (each.status === 'rejected' ? [each.reason] : []));
    expect(refused.length).toBeGreaterThan(10);
    expect(refused.length).toBeLessThan(20);
    for (const reason of refused) {
      expect(reason).toBeInstanceOf(OverloadedError);
    }
    expect(refused.map(String).join()).toContain('has no memory for more audio');
    // All that was held is free again, also that of calls that left while they were decoded.
    for (let i = 0; i < 5; i++) {
      const leave = new AbortController();
      const left = serving.batchedRun(file, { signal: leave.signal });
      while (!readdirSync(tmpdir()).some(isFolder)) {
        await setImmediate();
      }
      leave.abort();
      await expect(left).rejects.toThrow();
    }
    await expect(serving.batchedRun(file)).resolves.toMatchObject({ duration: 30 });
  });

  it('[FZ4] The queue counts the bytes of samples, and has room for the longest audio by default', async () => {
    const second = new Float32Array(16_000);
    const serving = await launch({ batchSize: 1, queue: { maxCost: 200_000 } });
    const outcomes = await Promise.allSettled(
      Array.from({ length: 12 }, () => serving.batchedRun(second)),
    );
    const refused = outcomes.flatMap((each) => (each.status === 'rejected' ? [each.reason] : []));
    expect(refused.length).toBeGreaterThan(6);
    expect(refused.map(String).join()).toContain('queue.maxCost');
    const definition = speechToText({ name: 'ear', model: folder, maxSeconds: 86_400 });
    expect(definition.queue!.maxCost).toBeGreaterThan(86_400 * 64_000);
  });

  it('[FZ5] A file whose caller has left is not decoded, and its decoder ends', async () => {
    const serving = await launch();
    const leave = new AbortController();
    const long = wav(16_000 * 600, 16_000);
    const left = Array.from({ length: 2 * availableParallelism() }, () =>
      serving.batchedRun(long, { signal: leave.signal }),
    );
    while (!readdirSync(tmpdir()).some(isFolder)) {
      await setImmediate();
    }
    leave.abort();
    const outcomes = await Promise.allSettled(left);
    expect(outcomes.every(({ status }) => status === 'rejected')).toBe(true);
    const spawned = jest.spyOn(AudioReader.prototype as unknown as { run(): unknown }, 'run');
    await serving.batchedRun(clip);
    // Decoders that were about to begin get a signal that has aborted.
    expect(spawned.mock.calls.length).toBeLessThanOrEqual(1 + availableParallelism());
    spawned.mockRestore();
  });

  it('[FZ9] The reason for a file that is no recording has no address and no path', async () => {
    const serving = await launch();
    const files = [
      Buffer.from("ffconcat version 1.0\nfile 'a'\n"),
      Buffer.from('no audio'),
      clip.subarray(0, 20),
    ];
    for (const file of files) {
      const reason = await serving.batchedRun(file).catch(String);
      expect(reason).toMatch(/cannot read as audio: it/);
      expect(reason).not.toMatch(/0x|@|tmp|\//);
    }
  });

  it('[22.17] reads no other file that a playlist names, and leaves none behind', async () => {
    const serving = await launch();
    const path = fileURLToPath(
      new URL('../../../sample/03-audio-streams/clip/speech.wav', import.meta.url),
    );
    const before = new Set(readdirSync(tmpdir()));
    const playlists = [
      `ffconcat version 1.0\nfile '${path}'\n`,
      `#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:6,\nfile://${path}\n#EXT-X-ENDLIST\n`,
    ];
    for (const playlist of playlists) {
      await expect(serving.batchedRun(Buffer.from(playlist))).rejects.toBeInstanceOf(
        InvalidInputError,
      );
    }
    // Those of other specs are gone soon.
    const left = readdirSync(tmpdir()).filter((name) => isFolder(name) && !before.has(name));
    await until(() => left.every((name) => !existsSync(join(tmpdir(), name))));
  });
});

describe("Whisper's rules", () => {
  const tokens = {
    start: 0,
    silence: 8,
    end: 7,
    firstTime: 10,
    latestBegin: 3,
    suppressed: [1],
    suppressedFirst: [2],
    previous: undefined,
    languages: {},
    most: 20,
  };

  function after(before: readonly number[], likely: Readonly<Record<number, number>>): number {
    const logits = new Float32Array(20).fill(-5);
    Object.entries(likely).forEach(([token, logit]) => (logits[Number(token)] = logit));
    return nextToken(logits, before, tokens, samplerOf(0)).token;
  }

  it.each([
    ['begins with a time', [], { 3: 9, 12: 1 }, 12],
    ['begins no later than allowed', [], { 18: 9, 13: 1 }, 13],
    ['writes no suppressed token', [10], { 1: 9, 3: 1 }, 3],
    ['writes a word after the first time', [10], { 12: 9, 3: 1 }, 3],
    [
      'writes a second time, or the end, after a time behind words',
      [10, 3, 12],
      { 3: 9, 13: 1 },
      13,
    ],
    ['ends after a time behind words', [10, 3, 12], { 7: 9, 13: 1 }, 7],
    ['goes back to no earlier time', [10, 3, 14], { 12: 9, 14: 1 }, 14],
    [
      'takes a time if times are likelier together',
      [10, 3],
      { 4: 1, 12: 0.6, 13: 0.6, 14: 0.6 },
      12,
    ],
  ] as const)('[22.16] %s', (_, before, likely, expected) => {
    expect(after(before, likely)).toBe(expected);
  });

  it.each([
    ['a text without times', [3, 4], [[0, 4]], 200],
    [
      'a text that ends with one time',
      [10, 3, 60, 60, 4, 110],
      [
        [0, 1],
        [1, 2],
      ],
      200,
    ],
    ['a text that was cut off', [10, 3, 60, 60, 4], [[0, 1]], 50],
  ] as const)('[22.16] cuts %s into parts', (_, written, times, heard) => {
    const result = partsOf(written, 200, 0.02, 10);
    expect(result.parts.map(({ start, end }) => [start, end])).toEqual(times);
    expect(result.heard).toBe(heard);
  });
});

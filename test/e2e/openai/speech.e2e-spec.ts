import { fileURLToPath } from 'node:url';
import { expect, it } from '@jest/globals';
import { defineServing, last, type SequenceModel, ServingModule } from 'nestjs-serving';
import { OpenAIModule } from 'nestjs-serving/openai';
import { speechToText, type Transcript } from 'nestjs-serving/tasks';
import { describeUnless } from '../../fixtures/describe-unless.js';
import {
  nodeClientPrints,
  openAIClientsMissing,
  pythonClientPrints,
} from '../../fixtures/http/openai-clients.js';
import { missing } from '../../fixtures/http/server-process.js';
import { describeOnPlatforms } from '../../fixtures/partitions/platforms.js';

const PATH = '/v1/audio/transcriptions';
const CLIP = fileURLToPath(
  new URL('../../../sample/03-audio-streams/clip/speech.wav', import.meta.url),
);
const file = new Blob([Uint8Array.of(1, 2, 3)]);

interface Heard {
  readonly audio: Uint8Array;
  readonly task: string;
  readonly language?: string;
  readonly words?: boolean;
}

const howWell = { temperature: 0, logprob: -0.5, compressionRatio: 1.2, silence: 0.1 };
const pieces: readonly Transcript[] = [
  {
    text: ' Good morning.',
    segments: [
      {
        text: 'Good morning.',
        start: 0,
        end: 1.25,
        tokens: [50364, 2205, 2446, 50426],
        window: { start: 0, ...howWell },
      },
    ],
    duration: 3725.5,
  },
  {
    text: ' Bye.',
    segments: [
      {
        text: 'Bye.',
        start: 3723.004,
        end: 3725.5,
        tokens: [50564, 4621, 50684],
        window: { start: 3720, ...howWell },
      },
    ],
    duration: 3725.5,
  },
];

/** The piece with a word, if it has a good one. */
const withWord = ({ segments, ...piece }: Transcript): Transcript => ({
  ...piece,
  segments: segments.map((segment) => ({
    ...segment,
    words: segment.text.startsWith('Good') ? [{ text: 'Good', start: 0, end: 0.5 }] : [],
  })),
});

/** Says which task and bytes it was given, and then two pieces. */
function ear(fails = false) {
  const model: SequenceModel<Heard, Transcript, { readonly row: Heard; step: number }> = {
    start: (rows) => rows.map((row) => ({ row, step: 0 })),
    step: (states) =>
      states.map((state) => {
        const { words, language } = state.row;
        const whole = pieces[state.step++]!;
        const piece = words && language === undefined ? withWord(whole) : whole;
        if (fails && state.step > 1) {
          return new Error('secret reason');
        }
        return state.step === 2 ? last(piece) : piece;
      }),
  };
  const heard: Heard[] = [];
  const serving = defineServing({
    name: 'ear',
    model: { useFactory: () => model, sequence: {} },
    preprocess: (input: Heard) => {
      heard.push({ ...input, audio: new Uint8Array(input.audio) });
      return { batch: input };
    },
    postprocess: (output: Transcript | readonly Transcript[]): Transcript =>
      Array.isArray(output)
        ? {
            text: 'Good morning. Bye.',
            segments: output.flatMap(({ segments }) => segments),
            language: 'en',
            duration: 3725.5,
          }
        : (output as Transcript),
  });
  return { heard, offered: { serving, task: 'speech-to-text' as const } };
}

describeOnPlatforms("OpenAI's transcriptions", (listen) => {
  const start = async (fails = false, bodyLimit?: number) => {
    const { heard, offered } = ear(fails);
    const site = await listen({
      imports: [
        ServingModule.forRoot({ servings: [offered.serving] }),
        OpenAIModule.forRoot({ models: { ear: offered }, guards: [], bodyLimit }),
      ],
    });
    return { heard, site };
  };

  it('[23.9] The answer to a form is its text, in each format', async () => {
    const { heard, site } = await start();
    const post = async (format: string) => {
      const fields = { file, model: 'ear', response_format: format, temperature: '0' };
      const { status, headers, body } = await site.postForm(PATH, fields);
      return [status, headers.get('content-type'), body];
    };
    const segments = pieces.flatMap((piece) => piece.segments);

    expect(await post('json')).toEqual([
      200,
      'application/json; charset=utf-8',
      { text: 'Good morning. Bye.' },
    ]);
    expect(await post('text')).toEqual([200, 'text/plain; charset=utf-8', 'Good morning. Bye.\n']);
    expect((await post('verbose_json')).at(-1)).toEqual({
      task: 'transcribe',
      language: 'english',
      duration: 3725.5,
      text: 'Good morning. Bye.',
      segments: segments.map(({ window, ...segment }, id) => ({
        id,
        ...segment,
        temperature: 0,
        seek: window.start === 0 ? 0 : 372_000,
        avg_logprob: -0.5,
        compression_ratio: 1.2,
        no_speech_prob: 0.1,
      })),
    });
    expect(await post('srt')).toEqual([
      200,
      'application/x-subrip; charset=utf-8',
      '1\n00:00:00,000 --> 00:00:01,250\nGood morning.\n\n' +
        '2\n01:02:03,004 --> 01:02:05,500\nBye.\n\n',
    ]);
    expect(await post('vtt')).toEqual([
      200,
      'text/vtt; charset=utf-8',
      'WEBVTT\n\n00:00:00.000 --> 00:00:01.250\nGood morning.\n\n' +
        '01:02:03.004 --> 01:02:05.500\nBye.\n\n',
    ]);
    expect(heard[0]).toEqual({ audio: Uint8Array.of(1, 2, 3), task: 'transcribe' });
  });

  it('[23.9] A language and a translation reach the model', async () => {
    const { heard, site } = await start();
    await site.postForm('/v1/audio/translations', { file, model: 'ear', language: 'de' });
    expect(heard).toEqual([{ audio: Uint8Array.of(1, 2, 3), task: 'translate', language: 'de' }]);
  });

  it('[23.13] A prompt, a temperature and words reach the model, and words come back', async () => {
    const { heard, site } = await start();
    const format = { response_format: 'verbose_json', prompt: 'Names', temperature: '0.4' };
    const asked = { file, model: 'ear', ...format, 'timestamp_granularities[0]': 'word' };
    const { body } = await site.postForm(PATH, asked);
    expect(body).toEqual({
      task: 'transcribe',
      language: 'english',
      duration: 3725.5,
      text: 'Good morning. Bye.',
      words: [{ word: 'Good', start: 0, end: 0.5 }],
    });
    expect(heard).toEqual([
      {
        audio: Uint8Array.of(1, 2, 3),
        task: 'transcribe',
        prompt: 'Names',
        temperature: 0.4,
        words: true,
      },
    ]);
    const both = { ...asked, 'timestamp_granularities[1]': 'segment' };
    const { body: detailed } = await site.postForm(PATH, both);
    expect(detailed).toMatchObject({ words: [{}], segments: [{ text: 'Good morning.' }, {}] });
  });

  it('[23.13] A model that gives no words says so', async () => {
    const { site } = await start();
    const { status, body } = await site.postForm(PATH, {
      file,
      model: 'ear',
      language: 'de', // The test's model gives words in English alone.
      response_format: 'verbose_json',
      timestamp_granularities: 'word',
    });
    expect([status, body]).toMatchObject([
      400,
      { error: { message: expect.stringContaining('this model gives no times of words') } },
    ]);
  });

  it('[23.9] A stream has the text in pieces, and then as a whole', async () => {
    const { site } = await start();
    const { body } = await site.postForm(PATH, { file, model: 'ear', stream: 'true' });
    const events = (body as string).split('\n\n').filter(Boolean);
    expect(events.map((event) => JSON.parse(event.replace('data: ', '')) as unknown)).toEqual([
      { type: 'transcript.text.delta', delta: ' Good morning.' },
      { type: 'transcript.text.delta', delta: ' Bye.' },
      { type: 'transcript.text.done', text: 'Good morning. Bye.' },
    ]);
  });

  it('[23.9] A stream that fails after its first piece ends with an error', async () => {
    const { site } = await start(true);
    const { status, body } = await site.postForm(PATH, { file, model: 'ear', stream: 'true' });
    expect(status).toBe(200);
    expect(body).toContain('transcript.text.delta');
    expect(body).toMatch(/"error":\{"message":"Internal Server Error/);
    expect(body).not.toContain('secret');
  });

  it('[23.9] Forms that it cannot follow are refused by their field', async () => {
    const { heard, site } = await start();
    const refused: readonly (readonly [Record<string, string | Blob>, string | null, RegExp])[] = [
      [{ model: 'ear' }, 'file', /"file" is missing/],
      [{ file: 'text', model: 'ear' }, 'file', /"file" is missing/],
      [{ file }, 'model', /must be a model's id/],
      [
        { file, model: 'ear', response_format: 'docx' },
        'response_format',
        /allowed is "json", "text"/,
      ],
      [{ file, model: 'ear', prompt: file }, 'prompt', /"prompt" is a file; give a text/],
      [
        { file, model: 'ear', temperature: '1.5' },
        'temperature',
        /allowed is a number from 0 to 1/,
      ],
      [
        { file, model: 'ear', temperature: 'warm' },
        'temperature',
        /is "warm"; allowed is a number/,
      ],
      [
        { file, model: 'ear', 'timestamp_granularities[]': 'letter' },
        'timestamp_granularities[]',
        /cannot do; leave it out/,
      ],
      [
        { file, model: 'ear', 'timestamp_granularities[]': 'word' },
        'timestamp_granularities',
        /needs "response_format" "verbose_json", and it is "json"/,
      ],
    ];
    for (const [fields, param, message] of refused) {
      const { status, body } = await site.postForm(PATH, fields);
      expect([status, body]).toEqual([
        400,
        { error: expect.objectContaining({ param, message: expect.stringMatching(message) }) },
      ]);
    }
    const { status, body } = await site.post(PATH, { model: 'ear' });
    expect([status, body]).toEqual([
      400,
      {
        error: expect.objectContaining({
          message: expect.stringMatching(/is no form .*but application\/json/),
        }),
      },
    ]);
    expect(heard).toEqual([]);
  });

  it('[FQ11] One spelling of a field is as good as another, and no field is dropped', async () => {
    const { site } = await start();
    const post = async (more: Record<string, string | Blob>) => {
      const { status, body } = await site.postForm(PATH, { file, model: 'ear', ...more });
      return [status, (body as { error?: { param: string } }).error?.param ?? body];
    };
    const format = { response_format: 'verbose_json' };
    for (const name of ['timestamp_granularities', 'timestamp_granularities[]']) {
      expect(await post({ ...format, [name]: 'letter' })).toEqual([400, name]);
      expect(await post({ [name]: 'word' })).toEqual([400, 'timestamp_granularities']);
      expect(await post({ ...format, [name]: 'segment' })).toEqual([200, expect.anything()]);
    }
    for (const stream of ['True', 'TRUE', '1']) {
      expect(await post({ stream })).toEqual([200, expect.stringContaining('text.delta')]);
    }
    expect(await post({ stream: 'False' })).toEqual([200, { text: 'Good morning. Bye.' }]);
    expect(await post({ stream: 'maybe' })).toEqual([400, 'stream']);
    expect(await post({ stream: 'true', response_format: 'srt' })).toEqual([
      400,
      'response_format',
    ]);
    expect(await post({ 'include[]': 'logprobs' })).toEqual([400, 'include[]']);
    expect(await post({ language: file })).toEqual([400, 'language']);
    expect(await post({ hotwords: 'a' })).toEqual([400, 'hotwords']);
    expect(await post({ temperature: '0.00', user: 'me' })).toEqual([200, expect.anything()]);
  });

  it('[FZ10] A form of very many parts is refused before it is parsed', async () => {
    const { site } = await start();
    const part = '--x\r\ncontent-disposition: form-data; name="a"\r\n\r\n\r\n';
    const reply = async (count: number, type: string) => {
      const response = await fetch(`${await site.app.getUrl()}${PATH}`, {
        method: 'POST',
        headers: { 'content-type': type },
        body: `${part.repeat(count)}--x--\r\n`,
      });
      return response.text();
    };
    const form = 'multipart/form-data; boundary=';
    expect(await reply(65, `${form}x`)).toContain('more than 64 parts');
    expect(await reply(100_000, `${form}"x"`)).toContain('more than 64 parts');
    expect(await reply(64, `${form}x`)).toContain("must be a model's id");
    expect(await reply(1, 'application/x-www-form-urlencoded')).toContain('is no form');
  });

  it('[23.9] A form beyond the limit is refused', async () => {
    const { site } = await start(false, 1000);
    const large = new Blob([new Uint8Array(2000)]);
    const { status } = await site.postForm(PATH, { file: large, model: 'ear' });
    expect(status).toBe(413);
  });
});

const model = fileURLToPath(new URL('../../fixtures/tasks/speech', import.meta.url));

describeUnless(missing('ffmpeg') ?? openAIClientsMissing, "OpenAI's clients with speech", () => {
  describeOnPlatforms('An application', (listen) => {
    const start = async (): Promise<string> => {
      const serving = speechToText({ name: 'ear', model, language: 'fr' });
      const { app } = await listen({
        imports: [
          ServingModule.forRoot({ servings: [serving] }),
          OpenAIModule.forRoot({ models: { ear: serving }, guards: [] }),
        ],
      });
      return app.getUrl();
    };
    const noModel = expect.stringContaining('There is no model "nix"');
    const noAudio = expect.stringContaining('cannot read as audio');

    it('[23.9] The client of OpenAI for Node works with it', async () => {
      const seen = (await nodeClientPrints(
        'openai.mjs',
        'speech',
        await start(),
        JSON.stringify(CLIP),
      )) as {
        readonly json: { readonly text: string };
      };
      const { text } = seen.json;
      expect(text.length).toBeGreaterThan(2);
      expect(seen).toEqual({
        json: { text },
        verbose: expect.objectContaining({ text, language: 'french', duration: 6.155375 }),
        words: expect.objectContaining({
          words: expect.arrayContaining([
            { word: expect.any(String), start: expect.any(Number), end: expect.any(Number) },
          ]),
          segments: expect.arrayContaining([expect.objectContaining({ temperature: 0.4 })]),
        }),
        srt: expect.stringMatching(/^1\n00:00:00,\d+ --> 00:00:0\d,\d+\n/),
        english: expect.any(String),
        events: expect.arrayContaining([{ type: 'transcript.text.done', text }]),
        errors: [
          expect.objectContaining({
            error: 'NotFoundError',
            code: 'model_not_found',
            message: noModel,
          }),
          expect.objectContaining({ error: 'BadRequestError', param: 'temperature' }),
          expect.objectContaining({ status: 400, code: 'invalid_value', message: noAudio }),
        ],
      });
    });

    it('[23.9] The AI SDK works with it', async () => {
      const seen = (await nodeClientPrints(
        'ai-sdk.mjs',
        'speech',
        await start(),
        JSON.stringify(CLIP),
      )) as { readonly text: string };
      const { text } = seen;
      expect(text.length).toBeGreaterThan(2);
      expect(seen).toEqual({
        text,
        detailed: {
          text,
          language: 'fr',
          duration: 6.155375,
          segment: { text: expect.any(String), startSecond: 0.86, endSecond: expect.any(Number) },
        },
        error: { name: 'AI_APICallError', statusCode: 404, message: noModel },
      });
    });

    it('[23.9] The client of OpenAI for Python works with it', async () => {
      const seen = (await pythonClientPrints(
        'openai_client.py',
        'speech',
        await start(),
        CLIP,
      )) as {
        readonly text: string;
      };
      expect(seen).toEqual({
        text: seen.text,
        plain: `${seen.text}\n`,
        segments: expect.arrayContaining([
          [expect.any(String), expect.any(Number), expect.any(Number)],
        ]),
        words: expect.arrayContaining([
          [expect.any(String), expect.any(Number), expect.any(Number)],
        ]),
        only_words: true,
        language: 'french',
        events: expect.arrayContaining(['transcript.text.delta', 'transcript.text.done']),
        errors: [
          ['NotFoundError', 404, 'model_not_found', 'model', noModel],
          ['BadRequestError', 400, 'invalid_value', null, noAudio],
        ],
      });
    });
  });
});

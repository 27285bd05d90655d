import { expect, it } from '@jest/globals';
import { defineServing, ServingModule } from 'nestjs-serving';
import { InferenceProtocolModule } from 'nestjs-serving/inference-protocol';
import { describeUnless } from '../../fixtures/describe-unless.js';
import {
  clientPrints,
  clientsMissing,
  perfAnalyzer,
} from '../../fixtures/http/inference-clients.js';
import { describeOnPlatforms } from '../../fixtures/partitions/platforms.js';
import { sums } from '../../fixtures/serving/sums.js';
import { sixOfEachType } from '../../fixtures/values/tensors.js';

const digits = defineServing({ name: 'digits', model: 'sample/01-digits/model/digits.onnx' });

const echoes = sixOfEachType
  .filter(({ type }) => !type.endsWith('int4'))
  .map(({ type }) =>
    defineServing({
      name: type,
      model: {
        useFactory: () => (rows: unknown) => rows,
        signature: { template: { x: { type, shape: [null, null] } } },
      },
    }),
  );

const upper = defineServing({
  name: 'upper',
  model: { useFactory: () => (texts: string[]) => texts.map((text) => text.toUpperCase()) },
});

const imports = [
  ServingModule.forRoot({ servings: [digits, upper, sums, ...echoes] }),
  InferenceProtocolModule.forRoot({
    servings: [
      'digits',
      { serving: 'upper', inputs: { text: 'BYTES' }, outputs: { up: 'BYTES' } },
      { serving: 'sums', inputs: { n: 'INT32' }, outputs: { sum: 'INT64' } },
      ...echoes.map(({ name }) => name),
    ],
  }),
];

const allTrue = (names: string[]) => Object.fromEntries(names.map((name) => [name, true]));

describeUnless(clientsMissing, 'Clients of the Open Inference Protocol', () => {
  describeOnPlatforms('An application', (listen) => {
    const hostOf = async (prefix?: string): Promise<string> => {
      const { app } = await listen(
        { imports },
        { configure: (each) => prefix && each.setGlobalPrefix(prefix) },
      );
      return new URL(await app.getUrl()).host;
    };

    it.each([undefined, 'api'])(
      '[18.16] The HTTP client of Triton works with it, with the global prefix %s',
      async (prefix) => {
        const host = await hostOf(prefix);
        const seen = await clientPrints(
          'client',
          'triton_http.py',
          [host, prefix].filter(Boolean).join('/'),
        );
        const ends = [null, 'gzip', 'deflate'];

        expect(seen).toEqual({
          live: true,
          ready: true,
          model_ready: true,
          unknown_ready: false,
          server: expect.objectContaining({ name: 'nestjs-serving' }),
          metadata: expect.objectContaining({ platform: 'onnxruntime_onnx' }),
          config: expect.objectContaining({ max_batch_size: 32 }),
          index: expect.arrayContaining([
            { name: 'digits', version: '1', state: 'READY', reason: '' },
          ]),
          rows: [5, 10],
          sums: true,
          forms: Object.fromEntries(
            ['True True', 'True False', 'False True', 'False False'].map((form) => [
              form,
              [true, 'a'],
            ]),
          ),
          compressed: allTrue(
            ends.flatMap((sent) => ends.map((got) => `${sent ?? 'None'} ${got ?? 'None'}`)),
          ),
          async: [
            [1, 10],
            [2, 10],
            [3, 10],
          ],
          types: {
            ...allTrue(
              ['BOOL', 'BYTES', 'FP32', 'FP64', 'INT8', 'UINT8', 'INT16', 'UINT16']
                .concat(['INT32', 'UINT32', 'INT64', 'UINT64'])
                .flatMap((type) => [`${type} True`, `${type} False`]),
            ),
            'FP16 True': true,
            'BF16 True': true,
          },
          texts: ['ONE', 'ZWÖLF'],
          sequence: [1, 5, 3, 6, ['400', expect.stringContaining('has no open sequence')]],
          parameters: [5, 10],
          errors: [
            ['404', expect.stringContaining('There is no model "nix"')],
            ['400', expect.stringContaining('the input "image" has the shape [5, 783]')],
            ['400', expect.stringContaining('the input "image" is missing')],
            ['400', expect.stringContaining('the input "image" is FP64 and must be FP32')],
            ['501', 'The extension "classification" is not supported'],
            ['501', expect.stringContaining('Shared memory')],
            ['501', expect.stringContaining('cannot load or unload')],
            ['404', 'Model "digits" has no version "7"; it has 1'],
          ],
          statistics: {
            version: '1',
            fields: expect.arrayContaining(['cache_hit', 'queue', 'success']),
            rows: expect.any(Number),
            all: echoes.length + 3,
          },
        });
      },
    );

    it('[18.16] The REST client of KServe works with it', async () => {
      const seen = await clientPrints('kserve', 'kserve_rest.py', `http://${await hostOf()}`);
      const reply = ['digits', 'probabilities', [3, 10], true];

      expect(seen).toEqual({
        live: true,
        ready: true,
        model_ready: true,
        'infer True': reply,
        'infer False': reply,
        large: [120, 10],
        texts: ['ONE', 'ZWÖLF'],
        errors: [
          expect.stringContaining('There is no model "nix"'),
          expect.stringContaining('the input "image" is missing'),
        ],
      });
    });

    it('[18.16] perf_analyzer measures it, in batches and in sequences', async () => {
      const host = await hostOf();
      const measure = (model: string, ...more: string[]) =>
        perfAnalyzer('-u', host, '-i', 'http', '-m', model, '--request-count', '100', ...more);

      expect(await measure('digits', '-b', '4', '--concurrency-range', '3')).toContain(
        'Batch size: 4',
      );
      expect(await measure('sums', '--shape', 'n:1', '--concurrency-range', '2')).toContain(
        'Concurrency: 2',
      );
    });
  });
});

import { expect, it } from '@jest/globals';
import {
  defineServing,
  getServingToken,
  type Serving,
  ServingModule,
  Tensor,
} from 'nestjs-serving';
import { OpenAIModule } from 'nestjs-serving/openai';
import { gainModel } from '../../fixtures/models/models.js';
import { describeOnPlatforms } from '../../fixtures/partitions/platforms.js';

describeOnPlatforms('A request for several texts', (listen) => {
  /** Posts a request to a serving whose active version is replaced at the first text. */
  const post = async (
    task: 'text-embedding' | 'text-classification' | 'text-generation',
    postprocess: (output: { y: Tensor }) => unknown,
    route: string,
    request: object,
  ) => {
    let onText: (() => unknown) | undefined;
    const own = defineServing({
      name: 'own',
      model: { file: gainModel(1), isolation: 'none' },
      rollout: { version: 'july', versions: { august: { model: gainModel(2) } } },
      preprocess: ({ text, prompt }: { text?: string; prompt?: string }) => {
        onText?.();
        return { batch: { x: new Tensor('float32', [Number(text ?? prompt), 0], [1, 2]) } };
      },
      postprocess,
    });
    const site = await listen({
      imports: [
        ServingModule.forRoot({ servings: [own] }),
        OpenAIModule.forRoot({ models: { own: { serving: 'own', task } }, guards: [] }),
      ],
    });
    const serving = site.app.get<Serving>(getServingToken(own));
    let promoted: Promise<void> | undefined;
    onText = () => (promoted ??= serving.version('august').promote());
    const reply = await site.post(route, request);
    await promoted;
    return reply;
  };

  it('[FU60] gets vectors of the next version when a reload takes its own away between two texts', async () => {
    const { status, body } = await post(
      'text-embedding',
      ({ y }) => ({ vector: y.data, tokens: 1 }),
      '/v1/embeddings',
      { model: 'own', input: ['1', '2', '3'] },
    );

    expect(status).toBe(200);
    expect(body).toMatchObject({
      data: [{ embedding: [2, 0] }, { embedding: [4, 0] }, { embedding: [6, 0] }],
      usage: { prompt_tokens: 3 },
    });
  });

  it.each([
    [
      '/vllm/classify',
      'text-classification',
      { model: 'own', input: ['1', '2', '3'] },
      /"probs":\[(\d+)/g,
    ],
    ['/tei/predict', 'text-classification', { inputs: [['1'], ['2'], ['3']] }, /"score":(\d+)/g],
    [
      '/v1/completions',
      'text-generation',
      { model: 'own', prompt: ['1', '2', '3'] },
      /"text":"(\d+)"/g,
    ],
  ] as const)(
    '[FU78] %s answers all texts by one version, also when a reload takes it away between two',
    async (route, task, request, scores) => {
      const { status, body } = await post(
        task,
        ({ y }) =>
          task === 'text-generation'
            ? {
                text: String(y.data[0]),
                tokens: [],
                finishReason: 'stop',
                usage: { promptTokens: 1, completionTokens: 1 },
              }
            : [{ label: 'gain', score: y.data[0] }],
        route,
        request,
      );

      expect([
        status,
        [...JSON.stringify(body).matchAll(scores)].map(([, score]) => score),
      ]).toEqual([200, ['2', '4', '6']]);
    },
  );
});

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

describeOnPlatforms('A request for several vectors', (listen) => {
  it('[FU60] is answered by the next version when a reload takes its own away between two texts', async () => {
    let onText: (() => unknown) | undefined;
    const own = defineServing({
      name: 'own',
      model: { file: gainModel(1), isolation: 'none' },
      rollout: { version: 'july', versions: { august: { model: gainModel(2) } } },
      preprocess: ({ text }: { text: string }) => {
        onText?.();
        return { batch: { x: new Tensor('float32', [Number(text), 0], [1, 2]) } };
      },
      postprocess: ({ y }: { y: Tensor }) => ({ vector: y.data, tokens: 1 }),
    });
    const site = await listen({
      imports: [
        ServingModule.forRoot({ servings: [own] }),
        OpenAIModule.forRoot({
          models: { own: { serving: 'own', task: 'text-embedding' } },
          guards: [],
        }),
      ],
    });
    const serving = site.app.get<Serving>(getServingToken(own));
    let promoted: Promise<void> | undefined;
    onText = () => (promoted ??= serving.version('august').promote());
    const { status, body } = await site.post('/v1/embeddings', {
      model: 'own',
      input: ['1', '2', '3'],
    });

    await promoted;
    expect(status).toBe(200);
    expect(body).toMatchObject({
      data: [{ embedding: [2, 0] }, { embedding: [4, 0] }, { embedding: [6, 0] }],
      usage: { prompt_tokens: 3 },
    });
  });

  it.each([
    ['/vllm/classify', { model: 'own', input: ['1', '2', '3'] }, /"probs":\[(\d+)/g],
    ['/tei/predict', { inputs: [['1'], ['2'], ['3']] }, /"score":(\d+)/g],
  ])(
    '[FU78] %s answers all texts by one version, also when a reload takes it away between two',
    async (route, request, scores) => {
      let onText: (() => unknown) | undefined;
      const own = defineServing({
        name: 'own',
        model: { file: gainModel(1), isolation: 'none' },
        rollout: { version: 'july', versions: { august: { model: gainModel(2) } } },
        preprocess: ({ text }: { text: string }) => {
          onText?.();
          return { batch: { x: new Tensor('float32', [Number(text), 0], [1, 2]) } };
        },
        postprocess: ({ y }: { y: Tensor }) => [{ label: 'gain', score: y.data[0] }],
      });
      const site = await listen({
        imports: [
          ServingModule.forRoot({ servings: [own] }),
          OpenAIModule.forRoot({
            models: { own: { serving: 'own', task: 'text-classification' } },
            guards: [],
          }),
        ],
      });
      const serving = site.app.get<Serving>(getServingToken(own));
      let promoted: Promise<void> | undefined;
      onText = () => (promoted ??= serving.version('august').promote());
      const { status, body } = await site.post(route, request);

      await promoted;
      expect([
        status,
        [...JSON.stringify(body).matchAll(scores)].map(([, score]) => score),
      ]).toEqual([200, ['2', '4', '6']]);
    },
  );
});

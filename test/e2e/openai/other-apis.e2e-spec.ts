import { expect, it } from '@jest/globals';
import { ServingModule } from 'nestjs-serving';
import { OpenAIModule } from 'nestjs-serving/openai';
import { rerank, textEmbedding } from 'nestjs-serving/tasks';
import { describeOnPlatforms, type Site } from '../../fixtures/partitions/platforms.js';
import { classifier, embedder, reranker, tinyModel } from '../../fixtures/tasks/tiny-models.js';

const prompted = textEmbedding({
  name: 'prompted',
  model: tinyModel('embedder'),
  prompts: { query: 'query: ', passage: 'passage: ' },
});

describeOnPlatforms('APIs that users come from', (listen) => {
  const start = (models: object = { embedder, reranker, classifier }): Promise<Site> =>
    listen({
      imports: [
        ServingModule.forRoot({ servings: [embedder, reranker, classifier, prompted] }),
        OpenAIModule.forRoot({ models: models as never, guards: [] }),
      ],
    });

  it("[23.12] Text Embeddings Inference's vectors are those of /v1/embeddings", async () => {
    const site = await start();
    const openai = await site.post('/v1/embeddings', { model: 'embedder', input: ['a', 'rows'] });
    const vectors = (openai.body as { data: { embedding: number[] }[] }).data.map(
      ({ embedding }) => embedding,
    );
    const many = await site.post('/tei/embed', { inputs: ['a', 'rows'], truncate: true });
    expect([many.status, many.body]).toEqual([200, vectors]);
    expect((await site.post('/tei', { inputs: 'a' })).body).toEqual([vectors[0]]);
    const ollama = await site.post('/ollama/api/embed', {
      model: 'embedder',
      input: ['a', 'rows'],
    });
    expect(ollama.body).toMatchObject({ embeddings: vectors, prompt_eval_count: 6 });
    const cohere = await site.post('/v2/embed', {
      model: 'embedder',
      texts: ['a', 'rows'],
    });
    expect(cohere.body).toMatchObject({
      response_type: 'embeddings_by_type',
      embeddings: { float: vectors },
      meta: { billed_units: { input_tokens: 6 } },
    });
  });

  it('[FU61] Text Embeddings Inference and Ollama give vectors of length 1, also by a serving that gives others', async () => {
    const plain = textEmbedding({ name: 'plain', model: tinyModel('embedder'), normalize: false });
    const site = await listen({
      imports: [
        ServingModule.forRoot({ servings: [embedder, plain] }),
        OpenAIModule.forRoot({ models: { embedder, plain }, guards: [] }),
      ],
    });
    const ask = async (path: string, body: object) => (await site.post(path, body)).body;
    const input = ['a', 'rows'];
    const ofTei = (model: string) =>
      ask(`/tei/embed?model=${model}`, { inputs: input, normalize: true });
    const ofOllama = async (model: string) => {
      const body = await ask('/ollama/api/embed', { model, input });
      return (body as { embeddings: number[][] }).embeddings;
    };
    const expected = ((await ofTei('embedder')) as number[][]).map((vector) =>
      vector.map((number) => expect.closeTo(number, 6)),
    );

    expect(await ofTei('plain')).toEqual(expected);
    expect(await ofOllama('plain')).toEqual(expected);
    const [one] = await ofOllama('plain');
    expect(Math.hypot(...one!)).toBeCloseTo(1, 6);
  });

  it("[23.12] Cohere's types of input are the model's prompts, if it has any", async () => {
    const site = await start({ prompted });
    const of = async (more: object) => {
      const { body } = await site.post('/v2/embed', { model: 'prompted', texts: ['a'], ...more });
      return (body as { embeddings?: { float: number[][] } }).embeddings?.float;
    };
    const query = await site.post('/v1/embeddings', {
      model: 'prompted',
      input: 'a',
      input_type: 'query',
    });
    const [{ embedding }] = (query.body as { data: [{ embedding: number[] }] }).data;
    expect(await of({ input_type: 'search_query' })).toEqual([embedding]);
    expect(await of({ input_type: 'search_document' })).not.toEqual([embedding]);
    // The model has prompts, and none of this name.
    expect(await of({ input_type: 'clustering' })).toBeUndefined();
  });

  it.each([
    '/v1/embeddings',
    '/v1/rerank',
    '/v2/rerank',
    '/v2/embed',
    '/tei',
    '/tei/embed',
    '/tei/rerank',
    '/tei/predict',
    '/vllm/classify',
    '/ollama/api/embed',
    '/v1/chat/completions',
    '/v1/completions',
    '/v1/responses',
  ])('[23.6] %s reads bodies that parsers of the application refuse', async (path) => {
    const site = await start();
    const { status, body } = await site.post(path, { model: 'none', more: 'a'.repeat(2_000_000) });
    expect(body).toHaveProperty('error');
    expect(status).not.toBe(413);
  });

  it("[23.12] Text Embeddings Inference's ranks and labels are those of the tasks", async () => {
    const site = await start();
    const texts = ['A batch holds rows.', 'The sky is blue.'];
    const openai = await site.post('/v1/rerank', {
      model: 'reranker',
      query: 'q',
      documents: texts,
    });
    const { results } = openai.body as { results: { index: number; relevance_score: number }[] };
    const ranked = await site.post('/tei/rerank', { query: 'q', texts, return_text: true });
    expect(ranked.body).toEqual(
      results.map(({ index, relevance_score: score }) => ({ index, score, text: texts[index] })),
    );

    const one = await site.post('/tei/predict', { inputs: 'a' });
    const list = await site.post('/tei/predict', { inputs: [['a'], ['a', 'b']] });
    const pair = await site.post('/tei/predict', { inputs: ['a', 'b'] });
    expect(one.body).toHaveLength(3);
    expect(list.body).toEqual([one.body, pair.body]);
  });

  it("[FU64] Text Embeddings Inference's ranks have scores from 0 to 1 unless a request asks for a model's own numbers", async () => {
    const raw = rerank({ name: 'raw', model: tinyModel('reranker'), scores: 'raw' });
    const site = await listen({
      imports: [
        ServingModule.forRoot({ servings: [reranker, raw] }),
        OpenAIModule.forRoot({ models: { reranker, raw }, guards: [] }),
      ],
    });
    const texts = ['A batch holds rows.', 'The sky is blue.'];
    const rank = async (model: string, more: object = {}) => {
      const reply = await site.post(`/tei/rerank?model=${model}`, { query: 'q', texts, ...more });
      return reply.body as { index: number; score: number }[];
    };
    const scores = await rank('reranker');

    expect(await rank('raw')).toEqual(scores);
    expect(await rank('raw', { raw_scores: false })).toEqual(scores);
    expect(await rank('raw', { raw_scores: true })).toEqual(
      scores.map(({ index, score }) => ({
        index,
        score: expect.closeTo(Math.log(score / (1 - score)), 5),
      })),
    );
    expect(await rank('raw', { raw_scores: 1 })).toMatchObject({
      error: '"raw_scores" is 1; allowed is true or false',
    });
  });

  it("[23.12] vLLM's probabilities are in the model's order, with the best label", async () => {
    const site = await start();
    const input = ['A batch holds rows.', 'rows'];
    const { body } = await site.post('/vllm/classify', { model: 'classifier', input });
    const ranked = (await site.post('/tei/predict', { inputs: input.map((each) => [each]) })).body;
    expect(body).toEqual({
      id: expect.stringMatching(/^classify_/),
      object: 'list',
      created: expect.any(Number),
      model: 'classifier',
      data: (ranked as { label: string; score: number }[][]).map((labels, index) => ({
        index,
        label: labels[0]!.label,
        probs: ['good', 'bad', 'so-so'].map(
          (name) => labels.find(({ label }) => label === name)!.score,
        ),
        num_classes: 3,
      })),
    });
    const one = await site.post('/vllm/classify', { model: 'classifier', input: input[0]! });
    expect(one.body).toMatchObject({ data: [(body as { data: object[] }).data[0]] });
  });

  it.each<[object, string]>([
    [{ model: 'classifier', input: ['a', ''] }, 'input[1]'],
    [{ model: 'classifier', input: ['a', '[SEP]'] }, 'input[1]'],
    [{ model: 'classifier', input: '[SEP]' }, 'input'],
    [{ model: 'classifier', messages: [] }, 'messages'],
    [{ model: 'classifier', input: 'a', truncate_prompt_tokens: 5 }, 'truncate_prompt_tokens'],
    [{ model: 'classifier', input: 'a', softmax: false }, 'softmax'],
    [{ model: 'embedder', input: 'a' }, 'model'],
  ])("[23.12] vLLM's classification refuses %j by its field", async (body, param) => {
    const site = await start();
    const answer = await site.post('/vllm/classify', body);
    expect([answer.status, answer.body]).toEqual([
      400,
      { error: expect.objectContaining({ param, type: 'invalid_request_error' }) },
    ]);
  });

  it.each<[string, object, number]>([
    ['/tei/embed', { inputs: [] }, 400],
    ['/tei/embed', { inputs: 'a', normalize: false }, 400],
    ['/tei/embed', { inputs: 'a', truncate: false }, 400],
    ['/tei/embed', { inputs: ['a', '[SEP]'] }, 400],
    ['/tei/embed', { inputs: 'a', strange: 1 }, 400],
    ['/tei/rerank', { texts: ['a'] }, 400],
    ['/tei/rerank', { query: 'q', texts: 'a' }, 400],
    ['/tei/rerank', { query: 'q', texts: ['a'], raw_scores: true }, 400],
    ['/tei/predict', { inputs: ['a', 'b', 'c'] }, 400],
    ['/tei/predict', { inputs: [[1]] }, 400],
    ['/ollama/api/embed', { model: 'nix', input: 'a' }, 404],
    ['/ollama/api/embed', { model: 'reranker', input: 'a' }, 400],
    ['/ollama/api/embed', { model: 'embedder', input: 'a', options: { num_ctx: 5 } }, 400],
  ])('[23.12] %s refuses %j in words', async (path, body, status) => {
    const site = await start();
    const answer = await site.post(path, body);
    expect([answer.status, answer.body]).toEqual([
      status,
      { error: expect.any(String), error_type: 'invalid_request_error' },
    ]);
  });

  it("[23.16] A refusal names the client's own field, with its place", async () => {
    const site = await start({ prompted, reranker, classifier });
    const special = 'a [SEP] b';
    const refusals: [string, object, RegExp][] = [
      ['/tei/embed', { inputs: ['a', special] }, /^"inputs\[1\]": /],
      ['/tei/embed', { inputs: special }, /^"inputs": /],
      ['/tei/embed', { inputs: 'a', prompt_name: 'title' }, /^"prompt_name": /],
      ['/tei/embed', { inputs: 'a', dimensions: 9 }, /asks for 9 dimensions$/],
      ['/tei/rerank', { query: 'a', texts: ['b', special] }, /^texts\[1\]: /],
      ['/tei/rerank', { query: special, texts: ['b'] }, /^query: /],
      ['/tei/predict', { inputs: [['a'], ['b', special]] }, /^"inputs\[1\]": /],
      ['/tei/predict', { inputs: special }, /^"inputs": /],
      ['/ollama/api/embed', { model: 'prompted', input: special }, /^"input": /],
    ];
    for (const [path, body, message] of refusals) {
      const refused = await site.post(path, body);
      expect([body, refused.status, refused.body]).toEqual([
        body,
        400,
        { error: expect.stringMatching(message), error_type: 'invalid_request_error' },
      ]);
    }
    const ofCohere: [object, string][] = [
      [{ texts: ['a', special] }, 'texts[1]'],
      [{ texts: ['a'], input_type: 'clustering' }, 'input_type'],
      [{ texts: ['a'], output_dimension: 9 }, 'output_dimension'],
    ];
    for (const [fields, param] of ofCohere) {
      const refused = await site.post('/v2/embed', { model: 'prompted', ...fields });
      expect([fields, refused.body]).toMatchObject([fields, { error: { param } }]);
    }
  });

  it('[23.12] Without a model in the request, the only one of a task answers', async () => {
    const site = await start({ embedder, prompted });
    const several = await site.post('/tei/embed', { inputs: 'a' });
    expect([several.status, several.body]).toEqual([
      404,
      expect.objectContaining({
        error: expect.stringContaining('"embedder", "prompted"; name one'),
      }),
    ]);
    expect((await site.post('/tei/embed?model=prompted', { inputs: 'a' })).status).toBe(200);
    const twice = await site.post('/tei/rerank?model=prompted&model=prompted', { query: 'a' });
    expect([twice.status, twice.body]).toMatchObject([
      404,
      { error: expect.stringContaining("There is no model \"[ 'prompted', 'prompted' ]\"") },
    ]);
    expect((await site.post('/tei/predict', { inputs: 'a' })).body).toMatchObject({
      error: 'No model of this server answers this path',
    });
  });
});

// Both clients of Cohere. Arguments: what to do, and the address of the server.
import { CohereClient, CohereClientV2 } from 'cohere-ai';

const [, , what, url] = process.argv;
const options = { token: 'secret', environment: url };
const clients = { v1: new CohereClient(options), v2: new CohereClientV2(options) };

const query = 'what is a batch';
const documents = ['A batch holds rows.', 'The sky is blue.', 'rows'];
const failed = ({ name, statusCode, body }) => ({ name, statusCode, body });

const embed = (more) =>
  clients.v2.embed({ model: 'embedder', inputType: 'search_query', texts: documents, ...more });

const steps = {
  async calls() {
    const { v1, v2 } = clients;
    const model = 'reranker';
    const texts = documents.map((text) => ({ text }));
    return {
      v1: await v1.rerank({ model, query, documents: texts, topN: 2, returnDocuments: true }),
      v2: await v2.rerank({ model, query, documents }),
      top: (await v2.rerank({ model, query, documents, topN: 1 })).results.length,
      error: await v2.rerank({ model: 'nix', query, documents }, { maxRetries: 0 }).catch(failed),
    };
  },

  async embed() {
    const float = await embed({ embeddingTypes: ['float', 'base64'] });
    return {
      float: float.embeddings.float.map(({ length }) => length),
      base64: float.embeddings.base64.map((text) => Buffer.from(text, 'base64').length),
      texts: float.texts,
      tokens: float.meta.billedUnits.inputTokens > 0,
      short: (await embed({ outputDimension: 8 })).embeddings.float[0].length,
      error: await embed({ embeddingTypes: ['int8'] }).catch(({ statusCode }) => statusCode),
    };
  },

  async retry() {
    const { results } = await clients.v2.rerank({ model: 'busy-reranker', query, documents });
    return results.length;
  },

  async abort() {
    const leaving = new AbortController();
    const call = clients.v2
      .rerank({ model: 'busy-reranker', query, documents }, { abortSignal: leaving.signal })
      .catch(({ message }) => message);
    await fetch(`${url}/queued`);
    leaving.abort();
    return call;
  },
};

console.log(JSON.stringify(await steps[what]()));
// After an abort, the client's timer would keep the process for five minutes.
process.exit();

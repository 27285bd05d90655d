// The clients of Ollama and of Hugging Face's endpoints. Arguments: what to do, and the address.
import { InferenceClient } from '@huggingface/inference';
import { Ollama } from 'ollama';

const [, , what, url] = process.argv;

const steps = {
  async ollama() {
    const headers = { authorization: 'Bearer secret' };
    const ollama = new Ollama({ host: `${url}/ollama`, headers });
    const embed = (more) =>
      ollama.embed({ model: 'embedder', input: ['A batch', 'rows'], ...more });
    const { model, embeddings } = await embed({});
    return {
      model,
      embeddings: embeddings.map(({ length }) => length),
      one: (await embed({ input: 'rows' })).embeddings.length,
      short: (await embed({ dimensions: 8 })).embeddings[0].length,
      error: await embed({ model: 'nix' }).catch(({ message }) => message),
      refused: await embed({ truncate: false }).catch(({ message }) => message),
    };
  },

  async huggingFace() {
    const client = new InferenceClient('secret');
    const endpointUrl = `${url}/tei?model=embedder`;
    const vectors = await client.featureExtraction({ endpointUrl, inputs: ['a', 'rows'] });
    return vectors.map(({ length }) => length);
  },
};

console.log(JSON.stringify(await steps[what]()));

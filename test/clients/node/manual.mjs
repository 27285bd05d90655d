const [, , , url, key] = process.argv;

// #region client
import OpenAI from 'openai';

const client = new OpenAI({ baseURL: url, apiKey: key }); // http://localhost:3000/v1
const { data } = await client.embeddings.create({
  model: 'text-embedding',
  input: ['Where is my parcel?', 'How do I pay?'],
});
const vectors = data.map(({ embedding }) => embedding);
// #endregion

console.log(JSON.stringify(vectors.map(({ length }) => length)));

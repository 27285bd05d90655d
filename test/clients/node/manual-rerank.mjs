const [, , , url, key] = process.argv;

// #region client
import { CohereClientV2 } from 'cohere-ai';

const client = new CohereClientV2({ environment: url, token: key }); // http://localhost:3000
const { results } = await client.rerank({
  model: 'reranker',
  query: 'Where is my parcel?',
  documents: ['We ship within two days.', 'Track it with its number.', 'Pay by card.'],
  topN: 2,
});
// #endregion

console.log(JSON.stringify(results.map(({ index }) => index)));

const [, , , url, key] = process.argv;

// #region client
import OpenAI from 'openai';

const client = new OpenAI({ baseURL: url, apiKey: key }); // http://localhost:3000/v1
const stream = await client.chat.completions.create({
  model: 'writer',
  messages: [{ role: 'user', content: 'What is a batch?' }],
  stream: true,
});
for await (const { choices } of stream) {
  process.stdout.write(choices[0].delta.content ?? '');
}
// #endregion

console.log(`\n${JSON.stringify('ended')}`);

// #region page
const source = new EventSource(`/write?question=${encodeURIComponent(question)}`);
source.addEventListener('message', ({ data }) => {
  const { text, finishReason } = JSON.parse(data);
  answer.append(text);
  if (finishReason) source.close(); // Left open, it would connect again and ask again.
});
source.addEventListener('error', () => source.close());
// #endregion

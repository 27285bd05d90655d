// #region page
const source = new EventSource(`/write?prompt=${encodeURIComponent(prompt)}`);
source.addEventListener('message', ({ data }) => answer.append(`${data} `));
source.addEventListener('end', () => source.close()); // Left open, it would connect again and ask again.
source.addEventListener('error', () => source.close());
// #endregion

import { readAddressesWith } from '../../internal.js';
import { parseAddress } from './remote-model.js';

readAddressesWith((owner, address, sha256) => {
  const model = parseAddress(owner, address, sha256);
  return {
    name: model.name,
    fetch: async (fetching) => {
      const { fetchModel } = await import('./fetch-model.js');
      return fetchModel(model, fetching);
    },
  };
});

import { type Fetching, readAddressesWith } from '../../doors/models.js';
import { parseAddress, parseRepository } from './remote-model.js';

readAddressesWith({
  model(owner, address, sha256) {
    const model = parseAddress(owner, address, sha256);
    return {
      name: model.name,
      fetch: async (fetching) => {
        const { fetchModel } = await import('./fetch-model.js');
        return fetchModel(model, fetching);
      },
    };
  },
  repository(owner, address) {
    const repository = parseRepository(owner, address);
    const opening = async () => {
      const { HubRepository } = await import('./fetch-model.js');
      return new HubRepository(repository);
    };
    let opened: ReturnType<typeof opening> | undefined;
    return {
      name: repository.name,
      fetch: async (path: string, fetching: Fetching) =>
        (await (opened ??= opening())).fetch(path, fetching),
    };
  },
});

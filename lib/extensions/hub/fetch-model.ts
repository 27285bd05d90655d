import { dirname, join } from 'node:path';
import { messageOf, ServingLoadError, externalFilesIn, type Fetching } from '../../internal.js';
import { hubCacheFolder } from './hub-cache.js';
import { fetchFromHub } from './hub-file.js';
import {
  encodePath,
  type HubModel,
  type ModelAddress,
  pathBeside,
  type WebModel,
} from './remote-model.js';
import { TransientError } from './request.js';
import { SharedWork } from './shared-work.js';
import { fetchFromWeb, webCacheFolder, webPathOf } from './web-file.js';

/** Servings of one process fetch the same model once. */
const downloads = new SharedWork<string>();

/**
 * Fetches the model and the files that it refers to, unless the cache has them.
 *
 * @returns the model's path
 * @throws ServingLoadError
 */
export function fetchModel(model: ModelAddress, { log, signal }: Fetching): Promise<string> {
  const folder = 'url' in model ? webCacheFolder() : hubCacheFolder();
  const key = JSON.stringify([model, folder, process.env['HF_ENDPOINT']]);
  return downloads.join(key, signal, async (shared) => {
    const fetching = { log, signal: shared };
    try {
      return await ('url' in model ? fromWeb(model, fetching) : fromHub(model, fetching));
    } catch (cause) {
      shared.throwIfAborted();
      throw new ServingLoadError(
        `Cannot fetch the model ${model.name} to ${folder}: ${messageOf(cause)}` +
          (cause instanceof TransientError ? UNREACHABLE : ''),
        { cause },
      );
    }
  });
}

const UNREACHABLE =
  '. Check the address and the network of this machine (Node uses a proxy only with ' +
  'NODE_USE_ENV_PROXY=1, from version 24 on), or put the model into the cache before the start';

async function fromHub(model: HubModel, fetching: Fetching): Promise<string> {
  const { path, commit } = await fetchFromHub(model, fetching);
  for (const location of await externalFilesIn(path)) {
    const beside = checked(pathBeside(model.path, location), location);
    const name = `hf:${model.repo}/${beside}@${commit}`;
    await fetchFromHub({ name, repo: model.repo, revision: commit, path: beside }, fetching);
  }
  return path;
}

async function fromWeb(model: WebModel, fetching: Fetching): Promise<string> {
  const path = webPathOf(model);
  await fetchFromWeb(model, path, fetching);
  for (const location of await externalFilesIn(path)) {
    const beside = checked(pathBeside('', location), location);
    if (model.sha256 !== undefined) {
      throw new ServingLoadError(
        `it keeps weights in another file, ${location}, whose content sha256 does not pin; ` +
          'export it as one file, fetch it from the Hub with hf:, put it into the image of the ' +
          'application, or accept any content with sha256: false',
      );
    }
    const url = new URL(encodePath(beside), model.url);
    const name = `${url.origin}${url.pathname}`;
    await fetchFromWeb({ ...model, name, url: url.href }, join(dirname(path), beside), fetching);
  }
  return path;
}

function checked(beside: string | undefined, location: string): string {
  if (beside === undefined) {
    throw new ServingLoadError(`it refers to the file ${location} outside of its own folder`);
  }
  return beside;
}

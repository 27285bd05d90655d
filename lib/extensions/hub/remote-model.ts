import { InvalidServingError, formatValue } from '../../doors/text.js';

export interface RepositoryAddress {
  readonly name: string;
  /** `org/repo` */
  readonly repo: string;
  /** Branch, tag or commit. */
  readonly revision: string;
}

export interface HubModel extends RepositoryAddress {
  readonly path: string;
  /** Lower-case hexadecimal digits. */
  readonly sha256?: string | undefined;
}

export interface WebModel {
  /** Address without the query, which may hold a signature. */
  readonly name: string;
  readonly url: string;
  readonly file: string;
  /** Lower-case hexadecimal digits; undefined accepts any content. */
  readonly sha256: string | undefined;
}

export type ModelAddress = HubModel | WebModel;

/**
 * Parses an `hf:`, `https:` or `http:` address.
 *
 * @throws InvalidServingError
 */
export function parseAddress(
  owner: string,
  address: string,
  sha256: string | false | undefined,
): ModelAddress {
  return /^hf:/i.test(address)
    ? hubModelOf(owner, address, sha256)
    : webModelOf(owner, address, sha256);
}

function hubModelOf(owner: string, name: string, sha256: string | false | undefined): HubModel {
  if (sha256 === false) {
    throw new InvalidServingError(
      `${owner}: sha256: false has no effect on ${name}, since the Hub states the SHA-256 of its ` +
        'files; leave it out',
    );
  }
  const address = name.slice('hf:'.length);
  const at = address.lastIndexOf('@');
  const revision = at < 0 ? 'main' : address.slice(at + 1);
  const [org = '', repo = '', ...path] = (at < 0 ? address : address.slice(0, at)).split('/');
  const parts = [org, repo, ...path, ...revision.split('/')];
  if (path.length === 0 || !parts.every(isName) || ![org, repo].every(isIdentifier)) {
    throw new InvalidServingError(
      `${owner}: ${formatValue(name)} is no file of the Hub; give ` +
        'hf:org/repo/path/to/model.onnx or hf:org/repo/path/to/model.onnx@revision',
    );
  }
  return {
    name,
    repo: `${org}/${repo}`,
    revision,
    path: path.join('/'),
    sha256: sha256?.toLowerCase(),
  };
}

/**
 * Parses `hf:org/repo` or `hf:org/repo@revision`.
 *
 * @throws InvalidServingError
 */
export function parseRepository(owner: string, name: string): RepositoryAddress {
  const [, repo, revision = 'main'] = /^hf:([\w.-]+\/[\w.-]+)(?:@([^@]+))?$/i.exec(name) ?? [];
  if (repo === undefined || ![...repo.split('/'), ...revision.split('/')].every(isName)) {
    throw new InvalidServingError(
      `${owner}: ${formatValue(name)} is no repository of the Hub; give hf:org/repo or ` +
        'hf:org/repo@revision',
    );
  }
  return { name, repo, revision };
}

function webModelOf(owner: string, address: string, sha256: string | false | undefined): WebModel {
  if (!URL.canParse(address)) {
    throw new InvalidServingError(`${owner}: ${formatValue(address)} is no valid address`);
  }
  const url = new URL(address);
  const name = `${url.origin}${url.pathname}`;
  if (url.username !== '' || url.password !== '') {
    throw new InvalidServingError(
      `${owner}: the address ${name} has a user or a password, which is not sent; give an ` +
        'address that needs none, for example a presigned one',
    );
  }
  if (sha256 === undefined) {
    throw new InvalidServingError(
      `${owner}: ${name} needs the SHA-256 of the file, so that no other file is ever run: model: ` +
        "{ file: 'https://...', sha256: '<64 hexadecimal digits>' } (shasum -a 256 model.onnx " +
        'prints it), or sha256: false to accept any content',
    );
  }
  if (sha256 === false && url.protocol === 'http:') {
    throw new InvalidServingError(
      `${owner}: ${name} is not encrypted, so that anybody on the way could replace the model; ` +
        'give its sha256, or use https',
    );
  }
  const last = decoded(url.pathname.split('/').at(-1) ?? '');
  const file = isName(last) && !last.includes('/') ? last : 'model.onnx';
  return { name, url: url.href, file, sha256: sha256 === false ? undefined : sha256.toLowerCase() };
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** False if the part leaves the folder or a file system forbids it. */
function isName(part: string): boolean {
  // oxlint-disable-next-line no-control-regex
  return part !== '' && part !== '.' && part !== '..' && !/[\\:\u0000-\u001f]/.test(part);
}

function isIdentifier(part: string): boolean {
  return /^[\w.-]+$/.test(part);
}

export function encodePath(path: string): string {
  return path.split('/').map(encodeURIComponent).join('/');
}

/** Undefined if the path leaves the model's folder. */
export function pathBeside(model: string, location: string): string | undefined {
  const folder = model.split('/').slice(0, -1);
  const parts = location.split('/').filter((part) => part !== '.');
  return parts.every(isName) ? [...folder, ...parts].join('/') : undefined;
}

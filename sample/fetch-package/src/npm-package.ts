import { exec } from 'node:child_process';
import { promisify } from 'node:util';
import { Parser } from 'tar';
import { withProgress } from './progress.js';

/**
 * The tarball of a package such as `name@1.2.3`, from the registry that the user's own npm is set
 * up with.
 */
export async function downloadPackage(source: string): Promise<Response> {
  // Without retries, so that somebody offline hears of it at once.
  const view = `npm view ${source} dist.tarball --fetch-retries=0 --fetch-timeout=30000`;
  const { stdout } = await promisify(exec)(view).catch((cause: unknown) => {
    throw new Error('npm does not reach its registry', { cause });
  });
  return fetch(stdout.trim());
}

/**
 * The wanted members of a tarball by path; in memory, since the disk is for what has been verified.
 */
export async function unpack(
  tarball: Response,
  members: readonly string[],
  label: string,
): Promise<Map<string, Buffer>> {
  if (!tarball.ok || !tarball.body) {
    throw new Error(`the registry answered ${tarball.status} ${tarball.statusText}`);
  }
  const contents = new Map<string, Buffer>();
  const parser = new Parser({
    strict: true,
    filter: (path) => members.includes(path),
    onReadEntry(entry) {
      const chunks: Buffer[] = [];
      entry.on('data', (chunk) => chunks.push(chunk));
      entry.on('end', () => contents.set(entry.path, Buffer.concat(chunks)));
    },
  });
  // The parser works synchronously: it throws where it is fed, and has parsed all when it is ended.
  for await (const chunk of withProgress(
    tarball.body,
    label,
    Number(tarball.headers.get('content-length')),
  )) {
    parser.write(Buffer.from(chunk));
  }
  parser.end();
  return contents;
}

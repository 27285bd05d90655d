import { once } from 'node:events';
import { get, type IncomingMessage } from 'node:http';
import type { LettersRow } from '../server/options.js';
import type { Application } from './application.js';

/** `events` are pushed to the client, `letters` are pulled by him. */
export type StreamPath = 'events' | 'letters';

/**
 * The texts of a stream as they come; whoever asks for no more of them lets them pile up. Leaving
 * the loop closes the connection.
 */
export async function* texts(
  application: Application,
  path: StreamPath,
  row: LettersRow,
): AsyncGenerator<string> {
  const [response] = (await once(
    get(urlOf(application, path, row), { agent: false }),
    'response',
  )) as [IncomingMessage];
  let rest = '';
  for await (const chunk of response.setEncoding('utf8') as AsyncIterable<string>) {
    const lines = (rest + chunk).split('\n');
    rest = lines.pop()!;
    yield* lines
      .filter((line) => line !== '' && !line.startsWith('id: '))
      .map((line) => line.replace(/^data: /, ''));
  }
}

/** The texts that the row is to get, each with its step. */
export function isOwn(text: string, step: number, { id, length }: LettersRow): boolean {
  return text === `${id}:${step}`.padEnd(length, '.');
}

function urlOf({ url }: Application, path: StreamPath, { id, steps, length }: LettersRow): URL {
  const query = new URLSearchParams({
    id: `${id}`,
    length: `${length}`,
    ...(steps !== undefined && { steps: `${steps}` }),
  });
  return new URL(`/${path}?${query.toString()}`, url);
}

import { loadSession } from './load-session.js';
import { Writer } from './writer.model.js';

/** Runs in a thread of its own: the model that writes all answers step by step. */
export default async function ({ options }: { options: { folder: string } }): Promise<Writer> {
  return new Writer(await loadSession(options.folder));
}

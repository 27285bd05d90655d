import { type BatchContext, DONE } from 'nestjs-serving';
import { generate, type Prompt } from './generate.js';
import { loadSession } from './load-session.js';

/** Runs in a thread of its own: a list of tokens per step, one for each prompt of the batch. */
export default async function ({ options }: { options: { folder: string } }) {
  const session = await loadSession(options.folder);

  return async function* (prompts: readonly Prompt[], { isWaiting }: BatchContext) {
    for await (const tokens of generate(session, prompts, isWaiting)) {
      yield tokens.map((token) => token ?? DONE);
    }
  };
}

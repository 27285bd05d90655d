import { parentPort, workerData } from 'node:worker_threads';
import { messageOf } from '../../doors/text.js';
import { GrammarEngine, type Matcher } from './grammar-engine.js';
import type { FromThread, GrammarFiles, ToThread } from './grammars.js';
import { GrammarError } from './answer-form.js';

const { file, tokenizer, endTokens } = workerData as GrammarFiles & { readonly file: string };
const matchers = new Map<number, Matcher>();
const engine = GrammarEngine.of(file, tokenizer, endTokens);

async function handle(message: ToThread): Promise<void> {
  const { id } = message;
  if ('grammar' in message) {
    matchers.set(id, await (await engine).open(message.grammar, message.endTokens));
  }
  const matcher = matchers.get(id);
  if ('isClosed' in message) {
    matchers.delete(id);
    matcher?.dispose();
    return;
  }
  if ('token' in message && !matcher!.acceptToken(message.token)) {
    throw new Error(`the token ${message.token} does not fit the grammar`);
  }
  const mask = await matcher!.getNextTokenBitmask();
  parentPort!.postMessage({ id, mask } satisfies FromThread, [mask.buffer as ArrayBuffer]);
}

// The library throws numbers, and what it did so far is not undone: the thread ends.
let last = Promise.resolve();
parentPort!.on('message', (message: ToThread) => {
  last = last
    .then(() => handle(message))
    .catch((cause: unknown) => {
      if (cause instanceof GrammarError) {
        const { message: refused } = cause;
        parentPort!.postMessage({ id: message.id, refused } satisfies FromThread);
        return;
      }
      parentPort!.postMessage({ id: message.id, error: messageOf(cause) } satisfies FromThread);
      parentPort!.close();
    });
});

import { type MessagePort, workerData } from 'node:worker_threads';
import { toWire } from '../../internal.js';
import { Chat } from './chat.js';
import { TextLimits, type TextTokenizer, textTokenizer, type Tokens } from './text-tokenizer.js';
import { withFrame } from './tokenizer-settings.js';
import type { Done, Job, ThreadFiles } from './tokenizing.js';

/** Runs in a thread: tokenizes long texts, and lays out conversations. An error at its start ends it. */
async function begin({ files, port }: { files: ThreadFiles; port: MessagePort }): Promise<void> {
  const { owner, name, ofTokenizer, template, limits } = files;
  const given = JSON.parse(Buffer.from(files.tokenizer).toString()) as Record<string, unknown>;
  const tokenizerJson = withFrame(given, ofTokenizer);
  const tokenizer = await textTokenizer({ ...files, tokenizerJson }, new TextLimits(limits));
  const chat =
    template === undefined ? undefined : await Chat.of({ owner, name, template, ofTokenizer });
  port.on('message', (job: Job) => port.postMessage(done(job, tokenizer, chat)));
}

function done(job: Job, tokenizer: TextTokenizer, chat: Chat | undefined): Done {
  try {
    return { tokens: tokensOf(job, tokenizer, chat) };
  } catch (cause) {
    return { error: toWire(cause) };
  }
}

function tokensOf(job: Job, tokenizer: TextTokenizer, chat: Chat | undefined): Tokens {
  if ('messages' in job) {
    return chat!.encode(job.messages, tokenizer);
  }
  return 'other' in job
    ? tokenizer.encodePair(job.text, job.other)
    : tokenizer.encode(job.text, job.before);
}

void begin(workerData as { files: ThreadFiles; port: MessagePort });

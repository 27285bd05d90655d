import { type MessagePort, workerData } from 'node:worker_threads';
import { toWire } from '../../internal.js';
import { Chat } from './chat.js';
import { TextLimits, textTokenizer, type Tokens } from './text-tokenizer.js';
import type { Done, Job, ThreadFiles } from './tokenizing.js';

/** Runs in a thread: tokenizes long texts, and lays out conversations. */
const { files, port } = workerData as { readonly files: ThreadFiles; readonly port: MessagePort };
const { owner, name, ofTokenizer, template } = files;

const tokenizer = await textTokenizer(
  name,
  JSON.parse(Buffer.from(files.tokenizer).toString()) as object,
  ofTokenizer,
  new TextLimits(files.limits),
);
const chat =
  template === undefined ? undefined : await Chat.of({ owner, name, template, ofTokenizer });

function tokensOf(job: Job): Tokens {
  if ('messages' in job) {
    return chat!.encode(job.messages, tokenizer);
  }
  return 'other' in job
    ? tokenizer.encodePair(job.text, job.other)
    : tokenizer.encode(job.text, job.before);
}

function done(job: Job): Done {
  try {
    return { tokens: tokensOf(job) };
  } catch (cause) {
    return { error: toWire(cause) };
  }
}

port.on('message', (job: Job) => port.postMessage(done(job)));

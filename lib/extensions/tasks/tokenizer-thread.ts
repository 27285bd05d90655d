import { doJobs } from '../../encoding/job-thread.js';
import { Chat } from './chat.js';
import { TextLimits, type TextTokenizer, textTokenizer, type Tokens } from './text-tokenizer.js';
import { withFrame } from './tokenizer-settings.js';
import type { Job, ThreadFiles } from './tokenizing.js';

async function start(given: unknown) {
  const files = given as ThreadFiles;
  const { owner, name, ofTokenizer, template, limits } = files;
  const written = JSON.parse(Buffer.from(files.tokenizer).toString()) as Record<string, unknown>;
  const tokenizerJson = withFrame(written, ofTokenizer);
  const tokenizer = await textTokenizer({ ...files, tokenizerJson }, new TextLimits(limits));
  const chat =
    template === undefined ? undefined : await Chat.of({ owner, name, template, ofTokenizer });
  return (job: Job) => ({ content: tokensOf(job, tokenizer, chat), moved: [] });
}

function tokensOf(job: Job, tokenizer: TextTokenizer, chat: Chat | undefined): Tokens {
  if ('messages' in job) {
    return chat!.encode(job, tokenizer);
  }
  return 'other' in job
    ? tokenizer.encodePair(job.text, job.other)
    : tokenizer.encode(job.text, job.before);
}

void doJobs(start);

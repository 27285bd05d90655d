import type { Worker } from 'node:worker_threads';
import { afterEach, beforeEach, describe, expect, it, jest } from '@jest/globals';
import {
  createServing,
  InvalidInputError,
  RequestTooLargeError,
  ServingUnavailableError,
} from 'nestjs-serving';
import {
  rerank,
  textClassification,
  textEmbedding,
  type TextEmbeddingOptions,
} from 'nestjs-serving/tasks';
import { TextTokenizer } from '../../../lib/extensions/tasks/text-tokenizer.js';
import { JobThread } from '../../../lib/encoding/job-thread.js';
import { silenceLog } from '../../fixtures/silent-log.js';
import { tinyModel } from '../../fixtures/tasks/tiny-models.js';

const words = 'How do I get my money back for the card? ';
/** As many tokens as the model reads come from its first part. */
const long = words.repeat(100);
const short = words.repeat(12);

interface Started {
  readonly worker: Worker;
  readonly isWarm: boolean;
}

let starting: jest.SpiedFunction<() => Started>;
const started: { close(): Promise<void> }[] = [];
beforeEach(() => {
  silenceLog();
  starting = jest.spyOn(JobThread.prototype as unknown as { start(): Started }, 'start');
});
afterEach(async () => {
  jest.restoreAllMocks();
  await Promise.all(started.splice(0).map((serving) => serving.close()));
});

async function embedder(options: Partial<TextEmbeddingOptions> = {}) {
  const definition = textEmbedding({ name: 'net', model: tinyModel('embedder'), ...options });
  const serving = createServing(definition);
  started.push(serving);
  await serving.start();
  return serving;
}

/** Records the texts that are tokenized in this thread. */
function tokenizedHere(): () => readonly unknown[] {
  const encode = jest.spyOn(TextTokenizer.prototype, 'encode');
  const encodePair = jest.spyOn(TextTokenizer.prototype, 'encodePair');
  return () => [...encode.mock.calls.map(([text]) => text), ...encodePair.mock.calls.flat()];
}

/** Threads that a test has started. */
function threads(): readonly Started[] {
  return starting.mock.results.map(({ value }) => value as Started);
}

/** The event loop's share of time, as the next look sees it. */
async function loopWorks(utilization: number): Promise<void> {
  jest
    .spyOn(performance, 'eventLoopUtilization')
    .mockReturnValue({ utilization, active: 0, idle: 0 });
  await new Promise((resolve) => setTimeout(resolve, 110));
}

describe('A text of more than 500 characters', () => {
  it('[FZ2] is tokenized in a thread, and has the vector of its readable part', async () => {
    const serving = await embedder({ tooLong: 'cut' });
    const here = tokenizedHere();
    const [one, other] = await Promise.all([serving.batchedRun(long), serving.batchedRun(short)]);

    expect([...one.vector]).toEqual([...other.vector]);
    expect(here()).toEqual([short]);
  });

  it('[FZ2] is tokenized in a thread where it is the second of a pair, or one of many documents', async () => {
    const classifier = createServing(
      textClassification({ name: 'pairs', model: tinyModel('classifier'), tooLong: 'cut' }),
    );
    const ranker = createServing(
      rerank({ name: 'ranks', model: tinyModel('reranker'), tooLong: 'cut' }),
    );
    started.push(classifier, ranker);
    await Promise.all([classifier.start(), ranker.start()]);
    const here = tokenizedHere();
    await classifier.batchedRun({ text: 'a', pair: long });
    const documents = [long, 'How do I get my money back', `${long}${long}`, 'a card'];
    const ranked = await ranker.batchedRun({ query: 'money', documents });
    const alone = await Promise.all(
      documents.map((document) => ranker.batchedRun({ query: 'money', documents: [document] })),
    );

    expect(here().every((text) => (text as string).length <= 1000)).toBe(true);
    for (const { index, score } of ranked) {
      expect(score).toBeCloseTo(alone[index]![0]!.score, 5);
    }
  });

  it('[FZ2] is refused as a short one is, also by its thread', async () => {
    const serving = await embedder();
    const tooLong = serving.batchedRun(short.repeat(2));
    await expect(tooLong).rejects.toThrow(RequestTooLargeError);
    await expect(tooLong).rejects.toThrow(/Serving "net" reads texts of at most \d+ tokens/);
    const special = serving.batchedRun(`${short.repeat(2)}[SEP]`);
    await expect(special).rejects.toThrow(InvalidInputError);
    await expect(special).rejects.toThrow('"[SEP]", a special token');
  });

  it('[FZ2] waits for those before it, and not if its caller has left', async () => {
    const serving = await embedder({ tooLong: 'cut' });
    const leave = new AbortController();
    const first = serving.batchedRun(long);
    const left = serving.batchedRun(long, { signal: leave.signal });
    const last = serving.batchedRun(long);
    leave.abort();

    await expect(left).rejects.toThrow('aborted');
    expect([...(await last).vector]).toEqual([...(await first).vector]);
  });

  it('[FZ2] fails with its thread, and the next one gets a new thread', async () => {
    const serving = await embedder({ tooLong: 'cut' });
    const lost = serving.batchedRun(long);
    const waiting = serving.batchedRun(long);
    while (threads().length === 0) {
      await new Promise(setImmediate);
    }
    await threads()[0]!.worker.terminate();

    await expect(lost).rejects.toThrow(ServingUnavailableError);
    await expect(lost).rejects.toThrow('the thread that tokenizes texts has ended');
    expect([...(await waiting).vector]).toEqual([...(await serving.batchedRun(short)).vector]);
    expect(starting).toHaveBeenCalledTimes(2);
  });
});

describe('Many short texts at the same time', () => {
  const texts = Array.from(
    { length: 40 },
    (_, i) => `How do I get money back for card ${i} of ${i}?`,
  );

  it('[FZ2] are tokenized in a thread if the event loop is busy, once it has started, except the first of a turn, with the same vectors', async () => {
    const serving = await embedder();
    const here = tokenizedHere();
    const vectorsOf = async (): Promise<readonly Float32Array[]> => {
      const replies = await Promise.all(texts.map((text) => serving.batchedRun(text)));
      return replies.map(({ vector }) => vector);
    };

    await loopWorks(0.9);
    const before = await vectorsOf();
    expect(here()).toEqual(texts);
    while (!threads().some(({ isWarm }) => isWarm)) {
      await new Promise(setImmediate);
    }
    const after = await vectorsOf();

    const inTurn = here().length - texts.length;
    expect(inTurn).toBeGreaterThan(20);
    expect(inTurn).toBeLessThan(40);
    for (const [index, vector] of after.entries()) {
      vector.forEach((value, at) => expect(value).toBeCloseTo(before[index]![at]!, 5));
    }
  });

  it('[FZ2] fail alone in a thread, with their own errors', async () => {
    const serving = await embedder();
    await loopWorks(0.9);
    await Promise.all(texts.map((text) => serving.batchedRun(text)));
    while (!threads().some(({ isWarm }) => isWarm)) {
      await new Promise(setImmediate);
    }
    const given = texts.map((text, index) => (index === 35 ? `${text} [SEP]` : text));
    const replies = await Promise.allSettled(given.map((text) => serving.batchedRun(text)));

    const failed = replies.flatMap((reply, index) => (reply.status === 'rejected' ? [index] : []));
    expect(failed).toEqual([35]);
    expect(replies[35]).toMatchObject({ reason: expect.any(InvalidInputError) as unknown });
  });

  it('[FZ2] are tokenized here if the event loop has little work', async () => {
    const serving = await embedder();
    const here = tokenizedHere();
    await loopWorks(0.3);
    await Promise.all(texts.map((text) => serving.batchedRun(text)));
    expect(here()).toEqual(texts);
    expect(threads()).toEqual([]);
  });

  it('[FZ2] are tokenized here if they come one after the other', async () => {
    const serving = await embedder();
    await loopWorks(0.9);
    const here = tokenizedHere();
    for (const text of texts) {
      await serving.batchedRun(text);
    }
    expect(here()).toEqual(texts);
    expect(threads()).toEqual([]);
  });
});

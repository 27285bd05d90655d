import { defineServing } from 'nestjs-serving';

/** A serving that gives the answer to a `Prompt` token by token. */
export function createWriter(folder: string) {
  return defineServing({
    name: 'writer',
    // A thread runs JavaScript: the built file, also when this file runs from its source.
    useFile: new URL('../dist/writer.thread.js', import.meta.url),
    partitions: [{ folder }],
    batchSize: 8,
    // A batch takes about a second and takes no more prompts when it runs, so it waits a moment for
    // prompts that arrive together.
    batchTimeout: 20,
  });
}

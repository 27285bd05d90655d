import { defineServing } from 'nestjs-serving';

/** A serving that gives the answer to a `Prompt` token by token. */
export function createWriter(folder: string) {
  return defineServing({
    name: 'writer',
    // A thread runs the script as it is built, from wherever this file is run.
    useFile: new URL('../dist/writer.thread.js', import.meta.url),
    partitions: [{ folder }],
    batchSize: 8,
    // A batch takes about a second and takes no more prompts when it runs, so it waits a moment for
    // prompts that arrive together.
    batchTimeout: 20,
  });
}

import { defineServing } from 'nestjs-serving';

/** A serving that gives the answer to a `Prompt` token by token. */
export function createWriter(folder: string) {
  return defineServing({
    name: 'writer',
    // A thread runs the script as it is built, from wherever this file is run.
    useFile: new URL('../dist/writer.thread.js', import.meta.url),
    partitions: [{ folder }],
    batchSize: 8,
    // A batch takes a second or so and nobody can join it, so it is worth a moment to gather those
    // who come together.
    batchTimeout: 20,
  });
}

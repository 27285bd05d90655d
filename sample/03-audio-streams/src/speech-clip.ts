import { readFile } from 'node:fs/promises';
import { samplesOf } from './pcm.js';

/** A WAV file of 16 kHz, mono, 16 bit. */
export const clipFile = new URL('../clip/speech.wav', import.meta.url);

/** The samples of the clip: what follows the name and the length of the part called `data`. */
export async function readClip(): Promise<Float32Array> {
  const file = await readFile(clipFile);
  return samplesOf(file.subarray(file.indexOf('data') + 8));
}

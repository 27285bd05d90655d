import { relative } from 'node:path';
import { fileURLToPath } from 'node:url';

/** The version that the application fetches itself. All others are files in `models`. */
export const fetchedVersion = 'june';

/** Has the tokenizer and the configuration, which all versions share. */
export const modelFolder = fileURLToPath(new URL('../.cache', import.meta.url));

export function modelOf(version: string): { readonly from: string; readonly file: string } {
  const folder = version === fetchedVersion ? '.cache' : 'models';
  const file = fileURLToPath(new URL(`../${folder}/${version}.onnx`, import.meta.url));
  return { from: modelFolder, file: relative(modelFolder, file) };
}

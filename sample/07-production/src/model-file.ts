import { fileURLToPath } from 'node:url';

/** The version that the application fetches itself. All others are files in `models`. */
export const fetchedVersion = 'june';

export function modelFile(version: string): string {
  const folder = version === fetchedVersion ? '.cache' : 'models';
  return fileURLToPath(new URL(`../${folder}/${version}.onnx`, import.meta.url));
}

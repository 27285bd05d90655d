import { fileURLToPath, pathToFileURL } from 'node:url';

/**
 * What a built sample's `fetch-model.js` gives by the function of this name; undefined, with a line
 * on the console, where the model can't be fetched.
 */
export async function modelOfSample<Model>(
  figure: string,
  sample: string,
  name: string,
): Promise<Model | undefined> {
  const built = fileURLToPath(
    new URL(`../../../../../sample/${sample}/dist/fetch-model.js`, import.meta.url),
  );
  try {
    const functions = (await import(pathToFileURL(built).href)) as Readonly<
      Record<string, () => Promise<Model>>
    >;
    return await functions[name]!();
  } catch (error) {
    console.error(`${figure} needs the model of the sample ${sample}: ${String(error)}`);
    return undefined;
  }
}

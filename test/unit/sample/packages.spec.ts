import { describe, expect, it } from '@jest/globals';
import { readdirSync, readFileSync } from 'node:fs';
import { builtinModules } from 'node:module';
import { join, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../../..', import.meta.url));
const samples = readdirSync(join(root, 'sample')).filter((name) => /^\d\d-/.test(name));

interface Manifest {
  readonly version: string;
  readonly dependencies: Readonly<Record<string, string>>;
  readonly devDependencies: Readonly<Record<string, string>>;
}

const manifestIn = (folder: string) =>
  JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as Manifest;

/** What the source files of a sample import or take by URL, each with the folder of the file. */
function importsOf(sample: string): readonly { readonly from: string; readonly name: string }[] {
  const source = join(root, 'sample', sample, 'src');
  return readdirSync(source, { recursive: true, encoding: 'utf8' }).flatMap((path) => {
    if (!path.endsWith('.ts')) {
      return [];
    }
    const code = readFileSync(join(source, path), 'utf8');
    const pattern = /^(?:import|export|}).* from '(.*)'|new URL\(['`](\..*?)['`]/gm;
    return [...code.matchAll(pattern)].map(([, imported, file]) => ({
      from: resolve(source, path, '..'),
      name: imported ?? file!,
    }));
  });
}

describe.each(samples)('The sample %s', (sample) => {
  const folder = join(root, 'sample', sample);
  const imports = importsOf(sample);
  const { dependencies, devDependencies } = manifestIn(folder);

  it('declares every package that it imports', () => {
    const packages = imports
      .filter(
        ({ name }) => !/^[./]/.test(name) && !builtinModules.includes(name.replace('node:', '')),
      )
      .map(({ name }) => name.split('/', name.startsWith('@') ? 2 : 1).join('/'));

    expect(Object.keys(dependencies)).toEqual(expect.arrayContaining(packages));
  });

  it('takes nothing from outside its folder', () => {
    const outside = imports
      .filter(({ name }) => name.startsWith('.'))
      .filter(({ from, name }) => relative(folder, resolve(from, name)).startsWith('..'));

    expect(imports.length).toBeGreaterThan(0);
    expect(outside).toEqual([]);
    expect(readFileSync(join(folder, 'tsconfig.json'), 'utf8')).not.toContain('extends');
  });

  it('depends on the versions that the repository is tested with', () => {
    const own = manifestIn(root);
    const tested = own.devDependencies;
    // npm does not install @nestjs/swagger beside TypeScript 7.
    const compiler = '@nestjs/swagger' in dependencies ? 'typescript' : '@typescript/native';
    const versions: Record<string, string> = {
      ...tested,
      'nestjs-serving': own.version,
      typescript: tested[compiler]!.replace(/.*@/, ''),
    };

    // The packages of bull-board require each other's exact version.
    const rangeOf = (name: string) =>
      `${name.startsWith('@bull-board/') ? '' : '^'}${versions[name]}`;
    const ranges = { ...dependencies, ...devDependencies };
    expect(ranges).toEqual(
      Object.fromEntries(Object.keys(ranges).map((name) => [name, rangeOf(name)])),
    );
  });
});

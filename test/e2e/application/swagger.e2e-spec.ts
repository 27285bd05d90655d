import { execFile } from 'node:child_process';
import { cp, mkdir, mkdtemp, realpath, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import type { OpenAPIObject } from '@nestjs/swagger';

interface Body {
  readonly content?: Readonly<Record<string, { readonly schema: unknown }>>;
}

interface Operation {
  readonly requestBody?: Body;
  readonly responses: Readonly<Record<string, Body>>;
}

const refTo = (name: string) => ({ $ref: `#/components/schemas/${name}` });

/** The schema of an object with one tensor of two axes. */
const containerOf = (name: string, description: string) => ({
  type: 'object',
  required: [name],
  properties: {
    [name]: {
      type: 'object',
      required: ['$tensor'],
      properties: {
        $tensor: {
          type: 'object',
          description,
          required: ['shape', 'datatype', 'data'],
          properties: {
            shape: {
              type: 'array',
              items: { type: 'integer', minimum: 0 },
              minItems: 2,
              maxItems: 2,
            },
            datatype: { type: 'string', enum: ['FP32'] },
            data: {
              type: 'array',
              items: { type: 'number' },
              description: expect.any(String),
            },
          },
        },
      },
    },
  },
});

const image = Array.from({ length: 784 }, () => 0);

/** The calls that the application makes to itself. */
const calls = [
  ['labels', { text: 'a' }],
  ['labels/careful', { text: 'b' }],
  ['labels/lengths', { text: 'abc' }],
  ['digits', { image: { $tensor: { shape: [1, 784], datatype: 'FP32', data: image } } }],
];

const run = promisify(execFile);
const root = fileURLToPath(new URL('../../..', import.meta.url));

const cli = {
  sourceRoot: 'src',
  compilerOptions: {
    plugins: [{ name: '@nestjs/swagger', options: { esmCompatible: true } }],
  },
};

const compilerOptions = {
  module: 'nodenext',
  target: 'es2022',
  strict: true,
  experimentalDecorators: true,
  emitDecoratorMetadata: true,
  skipLibCheck: true,
  types: ['node'],
  outDir: 'dist',
  rootDir: 'src',
};

/** Nest's compiler with the plugin builds a real application, which then answers. */
describe('The document of @nestjs/swagger', () => {
  let folder: string;
  let document: OpenAPIObject;
  let replies: unknown[];

  beforeAll(async () => {
    folder = await realpath(await mkdtemp(join(tmpdir(), 'swagger-')));
    const modules = join(folder, 'node_modules');
    await mkdir(join(modules, '@types'), { recursive: true });
    await symlink(root, join(modules, 'nestjs-serving'));
    for (const each of [
      '@nestjs',
      '@types/node',
      'onnxruntime-common',
      'reflect-metadata',
      'rxjs',
      'typescript',
    ]) {
      await symlink(await realpath(join(root, 'node_modules', each)), join(modules, each));
    }
    await cp(join(root, 'test/fixtures/swagger'), join(folder, 'src'), { recursive: true });
    await writeFile(join(folder, 'package.json'), '{ "type": "module" }');
    await writeFile(join(folder, 'nest-cli.json'), JSON.stringify(cli));
    const tsconfig = JSON.stringify({ compilerOptions, include: ['src'] });
    await writeFile(join(folder, 'tsconfig.json'), tsconfig);
    await run('node', [join(root, 'node_modules/@nestjs/cli/bin/nest.js'), 'build'], {
      cwd: folder,
    });
    ({ document, replies } = await start('dist/main.js', calls));
  });

  /** The document of a build that leaves the plugin's metadata in a file, as those of SWC do. */
  async function documentOfSwc(): Promise<OpenAPIObject> {
    const generator = '@nestjs/cli/lib/compiler/plugins/plugin-metadata-generator.js';
    await writeFile(
      join(folder, 'generate.js'),
      `import { PluginMetadataGenerator } from '${join(root, 'node_modules', generator)}';
      import { ReadonlyVisitor } from '@nestjs/swagger/plugin';
      const pathToSource = '${join(folder, 'src')}';
      new PluginMetadataGenerator().generate({
        visitors: [new ReadonlyVisitor({ esmCompatible: true, pathToSource })],
        outputDir: pathToSource,
        tsconfigPath: 'tsconfig.json',
      });`,
    );
    await run('node', ['generate.js'], { cwd: folder });
    const tsc = join(root, 'node_modules/typescript/lib/tsc.js');
    await run('node', [tsc, '-p', '.', '--outDir', 'swc'], { cwd: folder });
    return (await start('swc/main.js', [], './metadata.js')).document;
  }

  async function start(
    main: string,
    requests: readonly unknown[],
    ...metadata: string[]
  ): Promise<{ document: OpenAPIObject; replies: unknown[] }> {
    const model = join(root, 'sample/01-digits/model/digits.onnx');
    const { stdout } = await run('node', [main, model, JSON.stringify(requests), ...metadata], {
      cwd: folder,
    });
    return JSON.parse(stdout) as { document: OpenAPIObject; replies: unknown[] };
  }

  afterAll(() => rm(folder, { recursive: true, force: true }));

  /** The schemas of the bodies of a request and of its answer. */
  function bodiesOf(
    path: string,
    method: 'get' | 'post' = 'post',
    status = 201,
    from = document,
  ): unknown[] {
    const { requestBody, responses } = from.paths[path]![method] as unknown as Operation;
    return [requestBody, responses[status]].map(
      (body) => body?.content?.['application/json']?.schema,
    );
  }

  it('[D8] The plugin documents a batched method as its callers see it', () => {
    expect(bodiesOf('/labels')).toEqual([refTo('TextDto'), refTo('LabelDto')]);
    expect(bodiesOf('/labels/careful')).toEqual([refTo('TextDto'), refTo('LabelDto')]);
    expect(bodiesOf('/labels/{language}', 'get', 200)).toEqual([undefined, { type: 'string' }]);
    expect(document.paths['/labels/{language}']!.get!.parameters).toEqual([
      { name: 'language', in: 'path', required: true, schema: { type: 'string' } },
    ]);
    expect(replies.slice(0, 2)).toEqual([{ label: 'A' }, { label: 'b' }]);
  });

  it('[D8] The result of a method that prepares the input of a serving is not documented as the reply', () => {
    expect(bodiesOf('/labels/lengths')).toEqual([refTo('TextDto'), undefined]);
    expect(replies[2]).toEqual({ length: 3 });
  });

  it('[D8] In a build by SWC an explicit decorator documents the reply, and without one it is a list', async () => {
    const ofSwc = await documentOfSwc();

    const explicit = bodiesOf('/labels/careful', 'post', 201, ofSwc);
    expect(explicit).toEqual([refTo('TextDto'), refTo('LabelDto')]);
    const schema = { type: 'array', items: refTo('LabelDto') };
    expect(bodiesOf('/labels', 'post', 201, ofSwc)).toEqual([refTo('TextDto'), schema]);
  });

  it('[D8] Other methods are documented as the plugin does', () => {
    const schema = { type: 'array', items: refTo('LabelDto') };
    expect(bodiesOf('/labels/all')).toEqual([undefined, schema]);
  });

  it('[D9] The schemas of a model are those of its JSON', () => {
    expect(bodiesOf('/digits')).toEqual([refTo('DigitsInput'), refTo('DigitsOutput')]);
    const { DigitsInput, DigitsOutput } = document.components!.schemas!;
    expect(DigitsInput).toEqual(containerOf('image', 'image: float32[batch, 784]'));
    expect(DigitsOutput).toEqual(containerOf('probabilities', 'probabilities: float32[batch, 10]'));
    expect(replies[3]).toEqual({
      probabilities: { $tensor: { shape: [1, 10], datatype: 'FP32', data: expect.any(Array) } },
    });
  });
});

import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import {
  copyFile,
  cp,
  mkdir,
  mkdtemp,
  readdir,
  realpath,
  rm,
  symlink,
  writeFile,
} from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { describeUnless } from '../fixtures/describe-unless.js';
import { registryMissing } from '../fixtures/registry.js';
import { NatsServer, natsMissing } from '../fixtures/cluster/nats-server.js';

const run = promisify(execFile);
const root = fileURLToPath(new URL('../..', import.meta.url));
const { devDependencies } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
  devDependencies: Record<string, string>;
};

const quietly = ['--no-audit', '--no-fund', '--prefer-offline'];

/** The errors of the compiler for an application, types of the package included. */
const ownCompiler = ['node', join(root, 'node_modules/.bin/tsc')];

async function compile(
  app: string,
  source: string,
  options: object = {},
  [command, ...args] = ownCompiler,
): Promise<string> {
  const compilerOptions = {
    ...options,
    module: 'nodenext',
    target: 'es2023',
    strict: true,
    noEmit: true,
    experimentalDecorators: true,
  };
  await writeFile(join(app, 'package.json'), '{ "type": "module" }');
  await writeFile(join(app, 'app.ts'), source);
  await writeFile(
    join(app, 'tsconfig.json'),
    JSON.stringify({ compilerOptions: { ...compilerOptions, types: ['node'] } }),
  );
  const { stdout } = await run(command!, [...args, '-p', app]).catch(
    (failed: { stdout: string }) => failed,
  );
  return stdout;
}

describe('The packed package', () => {
  let folder: string;
  let tarball: string;

  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'consumer-'));
    await run('npm', ['pack', '--ignore-scripts', '--pack-destination', folder], { cwd: root });
    tarball = join(folder, (await readdir(folder))[0]!);
  });

  afterAll(() => rm(folder, { recursive: true, force: true }));

  it('[N16] The package contains the build, the manual and the licence, and nothing else', async () => {
    const { stdout } = await run('tar', ['-tzf', tarball]);
    const files = stdout.trim().split('\n');
    const outside = files.filter((file) => !/^package\/(dist|docs)\//.test(file));
    expect(outside.toSorted()).toEqual([
      'package/CHANGELOG.md',
      'package/LICENSE',
      'package/README.md',
      'package/package.json',
      'package/sample/01-digits/model/digits.onnx',
    ]);
    const readme = readFileSync(join(root, 'README.md'), 'utf8');
    const pages = [...readme.matchAll(/(?:\]\(|src=")(docs\/[^)"#]+)/g)];
    expect(pages.length).toBeGreaterThan(30);
    expect(files).toEqual(expect.arrayContaining(pages.map(([, page]) => `package/${page!}`)));
    for (const build of ['package/dist/esm', 'package/dist/cjs']) {
      expect(files).toEqual(
        expect.arrayContaining([
          `${build}/index.js`,
          `${build}/index.d.ts`,
          `${build}/features/thread.entry.js`,
          `${build}/extensions/distribution/transports/grpc/link.proto`,
          `${build}/extensions/board/page/index.html`,
          `${build}/extensions/board/page/board.js`,
          `${build}/extensions/board/page/board.css`,
          `${build}/extensions/testing/index.js`,
          `${build}/extensions/testing/index.d.ts`,
        ]),
      );
    }
    expect(files.filter((file) => file.endsWith('.map'))).toEqual([]);
  });

  it('The package passes publint', async () => {
    await run('npx', ['publint', 'run', tarball, '--strict'], { cwd: root });
  });

  it('The types of the package resolve, as checked by attw', async () => {
    // These are named in configuration, and not imported.
    const configured = ['thread', 'process', 'jest-environment'];
    await run('npx', ['attw', tarball, '--exclude-entrypoints', ...configured], { cwd: root });
  });

  /** An application with the package, its required peers and the named ones. */
  async function install(name: string, peers: readonly string[] = []): Promise<string> {
    const app = join(folder, name);
    const modules = join(app, 'node_modules');
    const installed = join(modules, 'nestjs-serving');
    await mkdir(installed, { recursive: true });
    await run('tar', ['-xzf', tarball, '-C', installed, '--strip-components', '1']);
    for (const each of [
      '@nestjs/common',
      '@nestjs/core',
      'onnxruntime-common',
      'reflect-metadata',
      'rxjs',
      'heap-js',
      ...peers,
    ]) {
      await mkdir(dirname(join(modules, each)), { recursive: true });
      await symlink(await realpath(join(root, 'node_modules', each)), join(modules, each));
    }
    return app;
  }

  it('In Node, require and import give the same module, with the tensor class of onnxruntime-node', async () => {
    const app = await install('one-copy', ['onnxruntime-node', '@nestjs/microservices']);
    await writeFile(
      join(app, 'required.cjs'),
      `module.exports = ['nestjs-serving', 'nestjs-serving/distribution', 'nestjs-serving/testing'].map(require);
      module.exports.push(require('onnxruntime-node').Tensor);`,
    );
    await writeFile(
      join(app, 'app.mjs'),
      `import required from './required.cjs';
      import * as serving from 'nestjs-serving';
      import * as distribution from 'nestjs-serving/distribution';
      import * as testing from 'nestjs-serving/testing';
      const same = [serving, distribution, testing].map((module, i) =>
        Object.keys(module).every((name) => required[i][name] === module[name]));
      console.log(JSON.stringify([...same, required[3] === serving.Tensor]));`,
    );
    const { stdout } = await run('node', ['app.mjs'], { cwd: app });
    expect(JSON.parse(stdout)).toEqual([true, true, true, true]);
  });

  it('[1.4] A file that TypeScript compiled to CommonJS is served', async () => {
    const app = await install('commonjs-file');
    await writeFile(
      join(app, 'doubler.cjs'),
      `Object.defineProperty(exports, '__esModule', { value: true });
      const { withMetadata } = require('nestjs-serving');
      exports.default = () => (numbers) => withMetadata(numbers.map((n) => 2 * n), { by: 2 });`,
    );
    await writeFile(
      join(app, 'app.cjs'),
      `const { createServing } = require('nestjs-serving');
      const { join } = require('node:path');
      void (async () => {
        for (const isolation of ['thread', 'process']) {
          const serving = createServing({
            name: 'doubler', model: { useFile: join(__dirname, 'doubler.cjs'), isolation },
            postprocess: (doubled, { metadata }) => [doubled, metadata],
          });
          await serving.start();
          console.log(JSON.stringify(await serving.batchedRun(21)));
          await serving.close();
        }
      })();`,
    );
    const { stdout } = await run('node', ['app.cjs'], { cwd: app });
    expect(stdout).toBe('[42,{"by":2}]\n[42,{"by":2}]\n');
  });

  it('[11] The package compiles without the peers of distribution, and with them options are type-checked', async () => {
    const [without, full] = await Promise.all([
      install('types', ['@types/node']),
      install('all-types', ['@types/node', '@nestjs/microservices']),
    ]);

    const imports =
      "import { ServingModule } from 'nestjs-serving'; import { ServingClusterModule } from 'nestjs-serving/distribution';";
    expect(await compile(without, `${imports} ServingModule.forRoot({ servings: [] });`)).toBe('');

    const nodeWith = (options: string) =>
      `${imports} import { Transport } from '@nestjs/microservices';
      ServingClusterModule.forRoot({ transport: Transport.TCP, options: { ${options} } });`;
    expect(await compile(full, nodeWith('port: 1'))).toBe('');
    expect(await compile(full, nodeWith('port: "1"'))).toContain(
      "Type 'string' is not assignable to type 'number'",
    );
    expect(await compile(full, nodeWith('prt: 1'))).toContain("'prt' does not exist in type");
  });

  it('[D3] The types compile with exactOptionalPropertyTypes and without skipLibCheck', () =>
    expectTypes('exact-types'));

  async function expectTypes(name: string, compiler?: string[]): Promise<void> {
    const peers = ['@nestjs/microservices', '@nestjs/terminus', '@opentelemetry/api'];
    const app = await install(name, ['@types/node', ...peers]);
    const entries = [
      '',
      '/distribution',
      '/inference-protocol',
      '/openai',
      '/opentelemetry',
      '/tasks',
      '/terminus',
      '/testing',
    ];
    const source = `${entries.map((entry, i) => `import * as e${i} from 'nestjs-serving${entry}';`).join(' ')}
      export const length: Promise<number> = e0.createServing(e0.defineServing({
        name: 'lengths',
        model: { useFactory: () => (texts: string[]) => texts.map((text) => text.length) },
      })).batchedRun('a');`;

    const options = { exactOptionalPropertyTypes: true, skipLibCheck: false };
    const found = await compile(app, source, options, compiler);

    expect(found.split('\n').filter((line) => line.includes('nestjs-serving/dist'))).toEqual([]);
    expect(found).not.toContain('app.ts');
  }

  it('A cluster over gRPC loads its peer packages on use and names missing ones', async () => {
    const script = join(root, 'test/fixtures/consumer/peers.mjs');
    const [without, full] = await Promise.all([
      install('no-grpc', ['@nestjs/microservices']),
      install('grpc', ['@nestjs/microservices', '@grpc/grpc-js', '@grpc/proto-loader']),
    ]);
    const start = async (app: string, transport: string): Promise<unknown> => {
      await copyFile(script, join(app, 'peers.mjs'));
      const { stdout } = await run('node', ['peers.mjs', transport], { cwd: app });
      return JSON.parse(stdout);
    };

    await expect(start(full, 'GRPC')).resolves.toEqual({ rows: 1_000_000, sum: 499_999_500_000 });
    await expect(start(without, 'TCP')).resolves.toEqual({ rows: 1_000_000, sum: 499_999_500_000 });
    await expect(start(without, 'GRPC')).rejects.toThrow("Cannot find package '@grpc/grpc-js'");
  });

  it('OpenTelemetry and Terminus are loaded only by their entry points, which name missing packages', async () => {
    const app = await install('no-peers');
    const load = (name: string) =>
      run('node', ['--input-type=module', '--eval', `import ${JSON.stringify(name)}`], {
        cwd: app,
      });
    await load('nestjs-serving');
    await expect(load('nestjs-serving/opentelemetry')).rejects.toThrow(
      "Cannot find package '@opentelemetry/api'",
    );
    await expect(load('nestjs-serving/terminus')).rejects.toThrow(
      "Cannot find package '@nestjs/terminus'",
    );
  });

  describeUnless(registryMissing, 'in empty applications', () => {
    it('[D3] The types compile with the oldest TypeScript that the manual names', async () => {
      const manual = readFileSync(join(root, 'docs/installation.md'), 'utf8');
      const [, oldest] = /TypeScript ([\d.]+) or newer/.exec(manual)!;
      const compiler = ['exec', '--yes', `--package=typescript@${oldest}`, '--', 'tsc'];
      await expectTypes('oldest-types', ['npm', ...compiler]);
    });

    it.each(['11', '12'])(
      '[H1] An empty application with Nest %s serves a model and closes while a batch never ends',
      async (major) => {
        const app = await applicationOf(major);
        const { stdout } = await run('node', ['app.mjs'], { cwd: app });
        const reply = JSON.parse(stdout) as {
          version: string;
          shapes: string[];
          doubled: number[];
          closed: object;
        };
        expect(reply).toEqual({
          version: expect.stringMatching(`^${major}\\.`),
          shapes: Array.from({ length: 40 }, () => '1x10'),
          doubled: [2, 4, 6],
          closed: { status: 503, inTime: true },
        });

        const inspected = await run('npx', ['nestjs-serving', 'inspect', 'digits.onnx'], {
          cwd: app,
        });
        expect(inspected.stdout).toContain('image: float32[batch, 784] (rows on axis 0)');

        // First without a test runner and @nestjs/testing, then with both.
        await run('node', ['script.mjs'], { cwd: app });
        await run('npm', ['install', ...quietly, ...testingPackages(major)], { cwd: app });
        await run('node', ['--test', 'app.test.mjs'], { cwd: app });
      },
    );
  });

  describeUnless(natsMissing ?? registryMissing, 'with a NATS server', () => {
    it.each([
      ['11', 'nats@^2.0.0'],
      ['12', `@nats-io/transport-node@${devDependencies['@nats-io/transport-node']}`],
    ])('[11] Applications with Nest %s form a cluster over %s', async (major, client) => {
      const server = await NatsServer.start();
      try {
        const app = await applicationOf(major);
        await run('npm', ['install', ...quietly, `@nestjs/microservices@^${major}.0.0`, client], {
          cwd: app,
        });
        const { stdout } = await run('node', ['cluster.mjs', server.url], { cwd: app });
        expect(JSON.parse(stdout.slice(stdout.lastIndexOf('\n{') + 1))).toEqual({
          version: expect.stringMatching(`^${major}\\.`),
          shapes: Array.from({ length: 40 }, () => '1x10'),
          doubled: [2, 4, 6],
          plain: 42,
          byteLength: 4_000_000,
        });
      } finally {
        await server.end();
      }
    });
  });

  const applications = new Map<string, Promise<string>>();

  /** An application of that version of Nest with the package, the same for all tests. */
  function applicationOf(major: string): Promise<string> {
    const application = applications.get(major) ?? createApplication(major);
    applications.set(major, application);
    return application;
  }

  async function createApplication(major: string): Promise<string> {
    const app = join(folder, `nest-${major}`);
    await cp(join(root, 'test/fixtures/consumer'), app, { recursive: true });
    await copyFile(join(root, 'sample/01-digits/model/digits.onnx'), join(app, 'digits.onnx'));
    await writeFile(join(app, 'package.json'), JSON.stringify(manifest(major)));
    const env = { ...process.env, ONNXRUNTIME_NODE_INSTALL: 'skip' };
    await run('npm', ['install', ...quietly], { cwd: app, env });
    return app;
  }

  function manifest(major: string): object {
    const nest = `^${major}.0.0`;
    return {
      private: true,
      type: 'module',
      dependencies: {
        '@nestjs/common': nest,
        '@nestjs/core': nest,
        '@nestjs/platform-express': nest,
        'nestjs-serving': `file:${tarball}`,
        'onnxruntime-node': devDependencies['onnxruntime-node'],
        'reflect-metadata': devDependencies['reflect-metadata'],
        rxjs: devDependencies['rxjs'],
      },
    };
  }
});

/** With the @nestjs/testing of that version. */
function testingPackages(major: string): string[] {
  return [
    `@nestjs/testing@^${major}.0.0`,
    `@sinonjs/fake-timers@${devDependencies['@sinonjs/fake-timers']}`,
  ];
}

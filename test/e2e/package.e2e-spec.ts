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
import { NatsServer, natsMissing } from '../fixtures/cluster/nats-server.js';

const run = promisify(execFile);
const root = fileURLToPath(new URL('../..', import.meta.url));
const { devDependencies } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
  devDependencies: Record<string, string>;
};

const quietly = ['--no-audit', '--no-fund', '--prefer-offline'];

/** The errors of the compiler for an application, types of the package included. */
async function compile(app: string, source: string): Promise<string> {
  const compilerOptions = {
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
  const { stdout } = await run('node', [join(root, 'node_modules/.bin/tsc'), '-p', app]).catch(
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

  it('The package contains the build, the manual and the licence, and nothing else', async () => {
    const { stdout } = await run('tar', ['-tzf', tarball]);
    const files = stdout.trim().split('\n');
    expect(files.filter((file) => !file.startsWith('package/dist/')).toSorted()).toEqual([
      'package/CHANGELOG.md',
      'package/LICENSE',
      'package/README.md',
      'package/package.json',
    ]);
    expect(files).toContain('package/dist/index.js');
    expect(files).toContain('package/dist/index.d.ts');
    expect(files).toContain('package/dist/partitions/worker/thread.entry.js');
    expect(files).toContain('package/dist/distribution/transports/grpc/link.proto');
    expect(files).toContain('package/dist/testing/index.js');
    expect(files).toContain('package/dist/testing/index.d.ts');
  });

  it('The package passes publint', async () => {
    await run('npx', ['publint', 'run', tarball, '--strict'], { cwd: root });
  });

  it('The types of the package resolve, as checked by attw', async () => {
    await run('npx', ['attw', tarball, '--profile', 'esm-only'], { cwd: root });
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

  it.each(['11', '12'])(
    '[H1] An empty application with Nest %s serves a model and closes while a batch never ends',
    async (major) => {
      const app = await applicationOf(major, 'nest');
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

      // First without a test runner and @nestjs/testing, then with both.
      await run('node', ['script.mjs'], { cwd: app });
      await run('npm', ['install', ...quietly, ...testingPackages(major)], { cwd: app });
      await run('node', ['--test', 'app.test.mjs'], { cwd: app });
    },
    240_000,
  );

  describeUnless(natsMissing, 'with a NATS server', () => {
    it.each([
      ['11', 'nats@^2.0.0'],
      ['12', `@nats-io/transport-node@${devDependencies['@nats-io/transport-node']}`],
    ])(
      '[11] Applications with Nest %s form a cluster over %s',
      async (major, client) => {
        const server = await NatsServer.start();
        try {
          const app = await applicationOf(major, 'cluster');
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
      },
      240_000,
    );
  });

  /** An empty application with the package. */
  async function applicationOf(major: string, name: string): Promise<string> {
    const app = join(folder, `${name}-${major}`);
    await cp(join(root, 'test/fixtures/consumer'), app, { recursive: true });
    await copyFile(join(root, 'sample/01-digits/model/digits.onnx'), join(app, 'digits.onnx'));
    await copyFile(join(root, '.npmrc'), join(app, '.npmrc'));
    await writeFile(join(app, 'package.json'), JSON.stringify(manifest(major)));
    await run('npm', ['install', ...quietly], { cwd: app });
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

import { cp, mkdir, readFile, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from '@jest/globals';
import { describeInBrowser, type OpenPage } from '../../fixtures/http/describe-in-browser.js';
import { describeUnless } from '../../fixtures/describe-unless.js';
import { missing as missingProgram } from '../../fixtures/http/server-process.js';
import { HubServer, ModelServer } from '../../fixtures/http/model-server.js';
import { registryMissing } from '../../fixtures/registry.js';
import { blocksOf, Starter } from './starter.js';

const curlMissing = missingProgram('curl');

const [curl] = blocksOf('README.md', 'sh', 'curl -s localhost:3000/digits') as [string];

/** Runs the application of the README, asks it as the README does, and ends it. */
async function tryOut(starter: Starter, main: string, cwd?: string): Promise<void> {
  const running = await starter.start(main, cwd);
  try {
    expect(running.log).toContain('model on cpu, natively');
    const [reply] = blocksOf('README.md', 'json', '"digit"') as [string];
    const { digit, confidence } = JSON.parse(reply) as { digit: number; confidence: number };
    await expect(running.curl(curl)).resolves.toEqual({
      status: 200,
      body: { digit, confidence: expect.closeTo(confidence, 6) },
    });
    await expect(running.curl(curl, '{ "drawing": ["four"] }')).resolves.toEqual({
      status: 400,
      body: expect.objectContaining({ message: ['each line is up to 7 of " " and "#"'] }),
    });
  } finally {
    // Nest raises the signal again after its shutdown hooks.
    await expect(running.stop()).resolves.toBe('SIGTERM');
  }
}

/** Runs the manual's endpoints from a model's name, with a tiny model in place of the Hub's. */
async function tryEmbeddings(starter: Starter): Promise<void> {
  const [install] = blocksOf('docs/getting-started.md', 'sh', '@huggingface/tokenizers') as [
    string,
  ];
  await starter.install(...install.trim().split(' ').slice(-1));
  for (const file of ['embeddings.ts', 'embedding-endpoint.ts']) {
    await starter.copy(`app/${file}`, `src/${file}`);
  }
  await starter.run('npm', 'run', 'build');
  await withHub(starter, async (hub) => {
    hub.commitFolder('sentence-transformers/all-MiniLM-L6-v2', 'test/fixtures/tasks/embedder');
    const injected = await answerOf(
      starter,
      'dist/embeddings.js',
      blocksOf('docs/getting-started.md', 'sh', 'localhost:3000/embed')[0]!,
    );
    expect(injected.status).toBe(201);
    expect(lengthOf((injected.body as { vector: number[] }).vector)).toBeCloseTo(1, 5);

    const ofOpenAI = await answerOf(
      starter,
      'dist/embedding-endpoint.js',
      blocksOf('docs/guides/embeddings.md', 'sh', 'localhost:3000/v1/embeddings')[0]!,
    );
    expect(ofOpenAI.status).toBe(200);
    const { data } = ofOpenAI.body as { data: { embedding: number[] }[] };
    expect(data.map(({ embedding }) => lengthOf(embedding))).toEqual([
      expect.closeTo(1, 5),
      expect.closeTo(1, 5),
    ]);
  });
}

/** Runs the manual's chat, with a tiny model in place of the Hub's, and asks it in a browser. */
async function tryChat(starter: Starter, openPage: OpenPage): Promise<void> {
  const [install] = blocksOf('docs/guides/generation.md', 'sh', '@huggingface/jinja') as [string];
  await starter.install(...install.trim().split(' ').slice(-2));
  await starter.copy('app/chat.module.ts', 'src/chat.module.ts');
  await starter.copy('app/chat.html', 'chat.html');
  const main = await readFile(join(starter.path, 'src/main.ts'), 'utf8');
  await writeFile(join(starter.path, 'src/chat.ts'), main.replace('./app.module', './chat.module'));
  await starter.run('npm', 'run', 'build');
  await withHub(starter, async (hub) => {
    const generator = 'test/fixtures/tasks/generator';
    const repository = 'HuggingFaceTB/SmolLM2-135M-Instruct';
    hub.commitFolder(repository, generator);
    const model = await readFile(join(generator, 'onnx/model_gqa.onnx'));
    hub.commit(repository, 'main', 'onnx/model_q4.onnx', model, 'a'.repeat(40));
    const running = await starter.start('dist/chat.js');
    try {
      const { page, problems } = await openPage(running.url, {});
      await page.evaluate(`{
        const { EventSource } = window;
        window.EventSource = class extends EventSource {
          constructor(url) { super(url); window.source = this; }
        };
      }`);
      await page.getByLabel('Question').fill('What is a batch?');
      const answer = page.getByRole('status');
      do {
        await page.getByRole('button').click();
        await page.waitForFunction('window.source.readyState === EventSource.CLOSED');
      } while ((await answer.textContent()) === ''); // The model draws an empty one at times.
      expect(await answer.textContent()).not.toContain('The connection is lost.');
      expect(problems).toEqual([]);
    } finally {
      await running.stop();
    }
  });
}

/** Gives the starter's applications a Hub while `use` runs. */
async function withHub(starter: Starter, use: (hub: HubServer) => Promise<void>): Promise<void> {
  const store = await new ModelServer().listen();
  const hub = await new HubServer(store).listen();
  process.env['HF_ENDPOINT'] = hub.origin;
  process.env['HF_HOME'] = join(starter.path, '../hub');
  try {
    await use(hub);
  } finally {
    delete process.env['HF_ENDPOINT'];
    delete process.env['HF_HOME'];
    await Promise.all([hub.close(), store.close()]);
  }
}

/** Starts the built application, runs a curl command of the manual, and ends the application. */
async function answerOf(starter: Starter, main: string, curlCommand: string) {
  const running = await starter.start(main);
  try {
    return await running.curl(curlCommand);
  } finally {
    await running.stop();
  }
}

function lengthOf(vector: readonly number[]): number {
  return Math.hypot(...vector);
}

/** Definitions that a file exports compile, and their declarations name no file of the package. */
async function compileExports(starter: Starter, typescript: string): Promise<void> {
  await starter.copy('app/definitions.ts', 'src/definitions.ts');
  const out = `declared-${typescript}`;
  const config = {
    extends: './tsconfig.build.json',
    // The starter of Nest 11 has a `baseUrl`, which TypeScript 7 refuses, and names no `types`, of
    // which TypeScript 6 and later include none.
    compilerOptions: {
      outDir: out,
      rootDir: 'src',
      baseUrl: null,
      types: ['node'],
      declaration: true,
    },
  };
  await writeFile(join(starter.path, 'tsconfig.declared.json'), JSON.stringify(config));
  const compiler = ['exec', '--yes', `--package=typescript@${typescript}`, '--', 'tsc'];
  await starter.run('npm', ...compiler, '--project', 'tsconfig.declared.json');
  const declared = await readFile(join(starter.path, out, 'definitions.d.ts'), 'utf8');
  expect(declared).toContain('import("nestjs-serving").ServingDefinition');
  expect(declared).not.toContain('node_modules');
}

/** A folder with the model and the native packages, as small as the manual makes it. */
async function folderForBundles(starter: Starter): Promise<string> {
  const bundled = join(starter.path, '../bundled');
  await mkdir(join(bundled, 'node_modules'), { recursive: true });
  await cp(join(starter.path, 'digits.onnx'), join(bundled, 'digits.onnx'));
  const native = `@koromix/koffi-${process.platform}-${process.arch}`;
  for (const name of ['onnxruntime-node', 'onnxruntime-common', 'koffi', native]) {
    const target = join(bundled, 'node_modules', name);
    await cp(join(starter.path, 'node_modules', name), target, { recursive: true });
  }
  const [slim] = blocksOf('docs/installation.md', 'sh', 'bin/napi-v6') as [string];
  await starter.run('bash', '-ec', `cd ../bundled && ${slim}`);
  return bundled;
}

/** Bundles the build as the manual does, and hides what a bundle may not find. */
async function bundleByEsbuild(
  starter: Starter,
  bundled: string,
  format: '--platform=node --outdir' | '--format=esm',
): Promise<void> {
  await starter.install('--save-dev', 'esbuild');
  const [esbuild] = blocksOf('docs/installation.md', 'sh', format) as [string];
  await starter.run('bash', '-ec', esbuild);
  await rename(join(starter.path, 'bundle'), join(bundled, 'esbuild'));
  await rename(join(starter.path, 'node_modules'), join(starter.path, 'hidden'));
}

/** Option of Jest and Vitest, whose own limit of 5 s is too short for a slow machine. */
const PATIENT = '--testTimeout=300000';
const compilers = ['5.9', '6.0', '7.0'];
const missing = registryMissing ?? curlMissing;

describeUnless(missing, 'A new application of Nest 11 (CommonJS, Jest)', () => {
  let starter: Starter;

  beforeAll(async () => {
    starter = await Starter.create('11');
    await starter.run('npm', 'run', 'build');
  });

  afterAll(() => starter.end());

  it('[N9] runs the application of the README, installed as the README does', () =>
    tryOut(starter, 'dist/main.js'));

  it("[N17] runs the endpoint of the manual from a model's name", () => tryEmbeddings(starter));

  describeInBrowser((openPage) => {
    it("[FU2] streams the manual's chat to its page", () => tryChat(starter, openPage));
  });

  it.each(compilers)(
    '[N2] compiles exported definitions of every runner with TypeScript %s',
    (version) => compileExports(starter, version),
  );

  it('passes tests in its own Jest, with ts-jest and with SWC', async () => {
    await starter.copy('app/digits.jest.ts', 'src/digits.spec.ts');
    await starter.copy('app/realms.ts', 'src/realms.spec.ts');
    await starter.copy('app/runtime.ts', 'src/runtime.spec.ts');
    expect(await starter.run('npm', 'test', '--', PATIENT)).toContain('5 passed, 5 total');

    await starter.install('--save-dev', '@swc/core', '@swc/jest');
    await writeFile(
      join(starter.path, '.swcrc'),
      JSON.stringify({
        jsc: {
          parser: { syntax: 'typescript', decorators: true },
          transform: { legacyDecorator: true, decoratorMetadata: true },
        },
      }),
    );
    const transform = JSON.stringify({ '^.+\\.(t|j)s$': '@swc/jest' });
    expect(await starter.run('npx', 'jest', PATIENT, `--transform=${transform}`)).toContain(
      '5 passed, 5 total',
    );
  });

  it('runs as `nest build --webpack` bundles it, without configuration', async () => {
    await starter.run('npx', 'nest', 'build', '--webpack');
    await tryOut(starter, 'dist/main.js');
  });

  it('runs bundled whole by webpack and by esbuild, beside native packages alone', async () => {
    const bundled = await folderForBundles(starter);
    await starter.copy('bundlers/webpack.config.js', 'webpack.config.js');
    await starter.run('npx', 'nest', 'build', '--webpack');
    await rename(join(starter.path, 'dist'), join(bundled, 'webpack'));
    await starter.run('npm', 'run', 'build');
    await bundleByEsbuild(starter, bundled, '--platform=node --outdir');

    await tryOut(starter, 'webpack/main.js', bundled);
    await tryOut(starter, 'esbuild/main.js', bundled);
  });
});

describeUnless(missing, 'A new application of Nest 12 (ES modules, Vitest)', () => {
  let starter: Starter;

  beforeAll(async () => {
    starter = await Starter.create('12');
    await starter.run('npm', 'run', 'build');
  });

  afterAll(() => starter.end());

  it('[N9] runs the application of the README, installed as the README does', () =>
    tryOut(starter, 'dist/main.js'));

  it("[N17] runs the endpoint of the manual from a model's name", () => tryEmbeddings(starter));

  describeInBrowser((openPage) => {
    it("[FU2] streams the manual's chat to its page", () => tryChat(starter, openPage));
  });

  it.each(compilers)(
    '[N2] compiles exported definitions of every runner with TypeScript %s',
    (version) => compileExports(starter, version),
  );

  it('passes tests in its own Vitest', async () => {
    await starter.copy('app/digits.vitest.ts', 'src/digits.spec.ts');
    await starter.copy('app/realms.ts', 'src/realms.spec.ts');
    expect(await starter.run('npm', 'test', '--', PATIENT)).toMatch(/Tests .*4 passed.*\(4\)/);
  });

  it('[N14] runs as `nest build --builder rspack` bundles it, without configuration', async () => {
    const [install] = blocksOf('docs/installation.md', 'sh', '@rspack/core') as [string];
    await starter.run('bash', '-ec', install);
    await starter.run('npx', 'nest', 'build', '--builder', 'rspack');
    await tryOut(starter, 'dist/main.js');
  });

  it('[N14] runs bundled whole by esbuild as ES modules, beside native packages alone', async () => {
    await starter.run('npm', 'run', 'build');
    const bundled = await folderForBundles(starter);
    await bundleByEsbuild(starter, bundled, '--format=esm');
    await tryOut(starter, 'esbuild/main.mjs', bundled);
  });
});

describeUnless(missing, "An application installed by Yarn with Plug'n'Play", () => {
  let starter: Starter;

  beforeAll(async () => {
    starter = await Starter.createByYarn();
  });

  afterAll(() => starter.end());

  it('[N13] runs a model given as a file natively, in a thread, a process and its own thread', async () => {
    await starter.copy('../../../sample/01-digits/model/digits.onnx', 'digits.onnx');
    await starter.copy('app/plug-n-play.mjs', 'main.mjs');

    const printed = await starter.yarn('node', 'main.mjs');

    expect(printed).toContain('{"native":[1,10],"thread":[1,10],"process":[1,10],"none":[1,10]}');
  });
});

import { accessSync, constants, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from '@jest/globals';
import { parse } from 'yaml';

const root = fileURLToPath(new URL('../..', import.meta.url));
const textOf = (path: string): string => readFileSync(join(root, path), 'utf8');
const { scripts, dependencies, peerDependencies } = JSON.parse(textOf('package.json')) as Record<
  'scripts' | 'dependencies' | 'peerDependencies',
  Record<string, string>
>;

interface Workflow {
  readonly on: Readonly<Record<string, unknown>>;
  readonly permissions?: Readonly<Record<string, string>>;
  readonly jobs: Readonly<Record<string, Job>>;
}

interface Job {
  readonly strategy?: { readonly matrix: { readonly node: readonly number[] } };
  readonly uses?: string;
  readonly steps?: readonly { readonly run?: string; readonly uses?: string }[];
}

const workflows = readdirSync(join(root, '.github/workflows')).map(
  (file) => [file, parse(textOf(`.github/workflows/${file}`)) as Workflow] as const,
);

/** Names of the scripts of package.json that a text runs. */
function scriptsIn(text: string): readonly string[] {
  return [...text.matchAll(/\bnpm (?:run (?:-s )?([\w:]+)|(test|t)\b)/g)].map(
    ([, name]) => name ?? 'test',
  );
}

describe.each(workflows)('The workflow %s', (_, workflow) => {
  const steps = Object.values(workflow.jobs).flatMap((job) => job.steps ?? []);
  const commands = steps.map(({ run = '' }) => run).join('\n');

  it('runs scripts that exist', () => {
    expect(scriptsIn(commands).filter((name) => !(name in scripts))).toEqual([]);
    for (const [path] of commands.matchAll(/(?<=^|\s)\.ci\/\S+/g)) {
      expect(() => accessSync(join(root, path), constants.X_OK)).not.toThrow();
    }
    for (const [path] of commands.matchAll(/(?<=node )scripts\/\S+/g)) {
      expect(() => accessSync(join(root, path))).not.toThrow();
    }
  });

  it('uses actions of a version', () => {
    const actions = steps.flatMap(({ uses = [] }) => uses);
    expect(actions.filter((action) => !/^[\w-]+\/[\w-]+@v\d+$/.test(action))).toEqual([]);
  });

  it('has only the rights that it names', () => {
    expect(workflow.permissions).toMatchObject({
      contents: expect.stringMatching(/^(read|write)$/),
    });
  });
});

it('Pull requests and pushes to main run the tests on each supported version of Node', () => {
  const tests = workflows.find(([file]) => file === 'tests.yml')![1];

  expect(Object.keys(tests.on)).toEqual(expect.arrayContaining(['pull_request', 'push']));
  for (const { strategy } of Object.values(tests.jobs)) {
    expect(strategy!.matrix.node).toEqual([20, 22, 24]);
  }
  expect(tests.jobs['everything']!.steps!.at(-1)).toEqual({ run: '.ci/run' });
});

it('A tag is released after all tests, and with provenance', () => {
  const release = workflows.find(([file]) => file === 'release.yml')![1];
  const { tests, publish } = release.jobs;

  expect(release.on).toEqual({ push: { tags: ['v*'] } });
  expect(tests).toEqual({ uses: './.github/workflows/tests.yml' });
  expect(publish).toMatchObject({ needs: 'tests', permissions: { 'id-token': 'write' } });
  expect(publish!.steps!.map(({ run = '' }) => run).join('\n')).toContain('--provenance');
});

it('CONTRIBUTING and README name scripts that exist', () => {
  const named = scriptsIn(textOf('CONTRIBUTING.md') + textOf('README.md'));

  expect(named.length).toBeGreaterThan(10);
  expect(named.filter((name) => !(name in scripts))).toEqual([]);
});

it('A server gets no dependency with an install script or dependencies of its own', () => {
  const { packages } = JSON.parse(textOf('package-lock.json')) as {
    packages: Record<string, { hasInstallScript?: boolean; dependencies?: object }>;
  };
  for (const name of Object.keys(dependencies)) {
    const { hasInstallScript, dependencies: inner } = packages[`node_modules/${name}`]!;
    expect({ name, hasInstallScript, inner }).toEqual({ name });
  }
});

it('CONTRIBUTING has a reason for each dependency and each peer', () => {
  const reasons = textOf('CONTRIBUTING.md').split('## Dependencies, and why')[1]!;
  const named = [...reasons.matchAll(/^- (.*?)(?:\(|:)/gm)].join();

  const names = Object.keys({ ...dependencies, ...peerDependencies });
  expect(names.filter((name) => !named.includes(`\`${name}\``))).toEqual([]);
});

it('The container for development has the packages that .ci/run installs', () => {
  const script = 'install-packages.sh';

  expect(textOf('.ci/run')).toContain(`.ci/${script}`);
  expect(textOf('.devcontainer/Dockerfile')).toContain(`.ci/${script}`);
  expect(textOf('.devcontainer/Dockerfile')).toContain(`node:${textOf('.nvmrc').trim()}-`);
});

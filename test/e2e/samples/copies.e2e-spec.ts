import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { cp, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, it } from '@jest/globals';
import { describeUnless } from '../../fixtures/describe-unless.js';
import { RedisServer, redisMissing } from '../../fixtures/cluster/redis-server.js';
import { freePort } from '../../fixtures/http/free-port.js';
import { missing } from '../../fixtures/http/server-process.js';
import { registryMissing } from '../../fixtures/registry.js';
import { blocksOf } from '../starters/starter.js';

const root = fileURLToPath(new URL('../../..', import.meta.url));
const names = (await readdir(join(root, 'sample'))).filter((name) => /^0[1-68]-/.test(name));

interface Manifest {
  readonly dependencies: Readonly<Record<string, string>>;
  readonly devDependencies: Readonly<Record<string, string>>;
}

/** How the boot log of a sample says that its model runs, and what the first command with curl in its README answers. */
const samples: readonly (readonly [name: string, runs: string, answer: RegExp])[] = [
  ['01-digits', 'natively', /^{"digit":\d,"confidence":0\.9\d*}$/],
  [
    '02-semantic-search',
    'natively',
    /^\[{"topic":"Travel","question":"Can I bring my dog on the plane\?"/,
  ],
  ['03-audio-streams', 'natively', /"timeline":"_+#{20,}/],
  ['04-token-stream', '1 thread', /event: done\n(?:.*\n)*?data: .*"reason":"end"/],
  ['05-ocr', '2 threads', /^{"text":"Departure 14:35"/],
];

describeUnless(
  registryMissing ?? missing('curl'),
  'A copy of a sample outside of the repository',
  () => {
    let folder: string;

    // One installation above all copies, of what they depend on and the packed package.
    beforeAll(async () => {
      folder = await mkdtemp(join(tmpdir(), 'samples-'));
      await run('npm', ['pack', '--ignore-scripts', '--pack-destination', folder], root);
      const [tarball] = await readdir(folder);
      for (const name of names) {
        await cp(join(root, 'sample', name), join(folder, name), {
          recursive: true,
          filter: (path) => !['dist', '.cache'].includes(basename(path)),
        });
      }
      const manifests = await Promise.all(
        names.map(
          async (name) =>
            JSON.parse(await readFile(join(folder, name, 'package.json'), 'utf8')) as Manifest,
        ),
      );
      const dependencies = Object.assign(
        {},
        ...manifests.flatMap((each) => [each.dependencies, each.devDependencies]),
        { 'nestjs-serving': `file:${tarball!}` },
      ) as Record<string, string>;
      await writeFile(
        join(folder, 'package.json'),
        JSON.stringify({ private: true, dependencies }),
      );
      const quietly = ['--ignore-scripts', '--no-audit', '--no-fund', '--prefer-offline'];
      await run('npm', ['install', ...quietly], folder);
    });

    afterAll(() => rm(folder, { recursive: true, force: true }));

    it.each(samples)(
      'The copy of %s starts with npm start, runs its model (%s), and answers the question of its README',
      async (name, runs, answer) => {
        const port = await freePort();
        const running = start(join(folder, name), port);
        try {
          await running.started;
          expect(running.output).toMatch(new RegExp(`is ready: [^;]*, ${runs}`));
          const [command] = blocksOf(`sample/${name}/README.md`, 'sh', 'curl') as [string];
          const own = command.replaceAll('localhost:3000', `localhost:${port}`);
          await expect(run('bash', ['-ec', own], join(folder, name))).resolves.toMatch(answer);
        } finally {
          await running.stop();
        }
      },
    );

    describeUnless(redisMissing, 'with Redis', () => {
      it('The copy of 08-corpus-index starts with npm start and answers the question of its README', async () => {
        const redis = await RedisServer.start();
        const port = await freePort();
        const running = start(join(folder, '08-corpus-index'), port, {
          REDIS_URL: `redis://127.0.0.1:${redis.port}`,
          BOARD_PASSWORD: 'a-password',
        });
        try {
          await running.started;
          expect(running.output).toMatch(/is ready: [^;]*, natively/);
          const [commands] = blocksOf('sample/08-corpus-index/README.md', 'sh', 'curl') as [string];
          const own = commands.replaceAll('localhost:3000', `localhost:${port}`);
          await expect(run('bash', ['-ec', own], folder)).resolves.toMatch(/^{"lines":4000,/);
        } finally {
          await running.stop();
          await redis.end();
        }
      });
    });

    it('The copy of 06-cluster starts with npm start, and no call fails', async () => {
      const output = await run('npm', ['start'], join(folder, '06-cluster'));

      expect(output.match(/ 0 failed, /g)).toHaveLength(3);
    });
  },
);

function start(cwd: string, port: number, settings: Record<string, string> = {}) {
  const child = spawn('npm', ['start'], {
    cwd,
    env: { ...process.env, ...settings, PORT: String(port) },
    stdio: ['ignore', 'pipe', 'pipe'],
    // A process group of its own, since npm starts others.
    detached: true,
  });
  // Closed, when the processes that npm started have ended too.
  const closed = once(child, 'close');
  let output = '';
  const started = new Promise<void>((resolve, reject) => {
    const read = (text: Buffer): void => {
      output += text.toString();
      if (output.includes(`http://localhost:${port}`)) {
        resolve();
      }
    };
    child.stdout.on('data', read);
    child.stderr.on('data', read);
    child.once('exit', () => reject(new Error(`The sample has ended:\n${output}`)));
  });
  return {
    started,
    get output() {
      return output;
    },
    async stop() {
      if (child.exitCode === null) {
        process.kill(-child.pid!, 'SIGTERM');
        await closed;
      }
    },
  };
}

async function run(command: string, args: readonly string[], cwd: string): Promise<string> {
  const { stdout } = await promisify(execFile)(command, args, { cwd });
  return stdout;
}

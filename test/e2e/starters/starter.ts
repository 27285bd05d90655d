import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { copyFile, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { freePort } from '../../fixtures/http/free-port.js';

const root = fileURLToPath(new URL('../../..', import.meta.url));
const folder = fileURLToPath(new URL('./', import.meta.url));
const quietly = ['--no-audit', '--no-fund', '--prefer-offline'];

/** A new Nest application, as `nest new` makes it, with the packed package. */
export class Starter {
  private constructor(readonly path: string) {}

  /** Follows the README: its install commands, and its application. */
  static async create(major: string): Promise<Starter> {
    const parent = await mkdtemp(join(tmpdir(), `starter-${major}-`));
    const starter = new Starter(join(parent, 'app'));
    const cli = ['exec', '--yes', `--package=@nestjs/cli@${major}`, '--'];
    const create = ['new', 'app', '--skip-git', '--skip-install', '--package-manager', 'npm'];
    await execute('npm', [...cli, 'nest', ...create, '--strict'], parent);
    // The package comes from this tree.
    const packed = `install ${quietly.join(' ')} ${await packInto(parent)}`;
    for (const command of blocksOf('README.md', 'sh', 'npm install nestjs-serving')) {
      await starter.run('bash', '-ec', command.replace('install nestjs-serving', packed));
    }
    for (const command of blocksOf('README.md', 'sh', 'npm install class-validator')) {
      await starter.run('bash', '-ec', command);
    }
    for (const [file, code] of applicationOf('README.md')) {
      // As the README says, Nest 11 imports without an extension.
      const own = major === '11' ? code.replace(/'(\.\/.*)\.js'/, "'$1'") : code;
      await writeFile(join(starter.path, 'src', file), own);
    }
    return starter;
  }

  /** A folder without Nest's files, with the packages as Yarn 4 installs them by default. */
  static async createByYarn(): Promise<Starter> {
    const parent = await mkdtemp(join(tmpdir(), 'starter-yarn-'));
    const starter = new Starter(join(parent, 'app'));
    await mkdir(starter.path);
    await writeFile(join(starter.path, 'package.json'), '{ "name": "app", "type": "module" }');
    // Otherwise Yarn takes the folder for a part of one above.
    await writeFile(join(starter.path, 'yarn.lock'), '');
    const packed = `nestjs-serving@file:${await packInto(parent)}`;
    const peers = ['@nestjs/common', '@nestjs/core', 'reflect-metadata', 'rxjs'];
    await starter.yarn('add', packed, 'onnxruntime-node', 'koffi', ...peers);
    return starter;
  }

  /** Yarn reads no configuration of npm, so it gets the registry that npm uses. */
  async yarn(...args: readonly string[]): Promise<string> {
    const registry = (await this.run('npm', 'config', 'get', 'registry')).trim();
    const settings = `YARN_NPM_REGISTRY_SERVER=${registry.replace(/\/$/, '')}`;
    const yarn = ['npm', 'exec', '--yes', '--package=@yarnpkg/cli-dist@4', '--', 'yarn'];
    return this.run('env', settings, ...yarn, ...args);
  }

  install(...packages: readonly string[]): Promise<string> {
    return this.run('npm', 'install', ...quietly, ...packages);
  }

  /** Copies a file of this folder. */
  async copy(file: string, to: string): Promise<void> {
    await copyFile(join(folder, file), join(this.path, to));
  }

  /** Runs a command to its end, and returns what it prints. */
  async run(command: string, ...args: readonly string[]): Promise<string> {
    const { stdout, stderr } = await execute(command, args, this.path);
    return stdout + stderr;
  }

  /** Starts the application from a built file, in this or another folder. */
  async start(main: string, cwd = this.path): Promise<Running> {
    const port = await freePort();
    const child = spawn(process.execPath, [main], {
      cwd,
      env: { ...process.env, PORT: String(port) },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    let output = '';
    await new Promise<void>((resolve, reject) => {
      const read = (text: Buffer): void => {
        output += text.toString();
        if (output.includes('successfully started')) {
          resolve();
        }
      };
      child.stdout.on('data', read);
      child.stderr.on('data', read);
      child.once('exit', () => reject(new Error(`The application has ended:\n${output}`)));
    });
    // Nest writes the line before it listens.
    await waitForPort(port);
    return new Running(child, port, output);
  }

  async end(): Promise<void> {
    await rm(join(this.path, '..'), { recursive: true, force: true });
  }
}

/** The application, while it listens. */
export class Running {
  constructor(
    private readonly child: ChildProcess,
    private readonly port: number,
    /** Log lines from before it listened. */
    readonly log: string,
  ) {}

  get url(): string {
    return `http://localhost:${this.port}`;
  }

  /** Runs a curl command of the README, and returns status and body. */
  async curl(command: string, drawing?: string): Promise<{ status: number; body: unknown }> {
    const own = command.replace('localhost:3000', `localhost:${this.port}`);
    const line = drawing === undefined ? own : own.replace(/-d '.*'/s, `-d '${drawing}'`);
    const { stdout } = await execute('bash', ['-ec', `${line.trim()} -w '\n%{http_code}'`], root);
    const [body, status] = stdout.split('\n');
    return { status: Number(status), body: JSON.parse(body!) };
  }

  /** Ends the application as an orchestrator does, and returns its exit code or signal. */
  async stop(): Promise<unknown> {
    const exited = once(this.child, 'exit');
    this.child.kill('SIGTERM');
    const [code, signal] = (await exited) as [number | null, string | null];
    return code ?? signal;
  }
}

/** The blocks of a page in that language that contain a text. */
export function blocksOf(page: string, language: string, text: string): readonly string[] {
  const pattern = new RegExp(`^\`\`\`${language}\\n(.*?)^\`\`\``, 'gms');
  const blocks = [...readFileSync(join(root, page), 'utf8').matchAll(pattern)]
    .map(([, block]) => block!)
    .filter((block) => block.includes(text));
  if (blocks.length === 0) {
    throw new Error(`${page} has no block of ${language} with "${text}"`);
  }
  return blocks;
}

/** The files of the application in a page, by name. */
function applicationOf(page: string): readonly (readonly [file: string, code: string])[] {
  const blocks = readFileSync(join(root, page), 'utf8').matchAll(
    /<!-- test\/e2e\/starters\/app\/(\S+)#\w+ -->\n```ts\n(.*?)```/gs,
  );
  return [...blocks].map(([, path, code]) => [basename(path!), code!] as const);
}

/** Packs the package of this tree; returns the path of the file. */
async function packInto(parent: string): Promise<string> {
  const pack = ['pack', '--ignore-scripts', '--pack-destination', parent];
  const { stdout } = await execute('npm', pack, root);
  return join(parent, stdout.trim());
}

async function execute(
  command: string,
  args: readonly string[],
  cwd: string,
): Promise<{ stdout: string; stderr: string }> {
  // Jest and Vitest would take the settings of this test run for theirs.
  const { NODE_OPTIONS: _, NODE_ENV: __, JEST_WORKER_ID: ___, ...inherited } = process.env;
  // The README's own commands say that nothing is downloaded.
  const { ONNXRUNTIME_NODE_INSTALL: ____, ...env } = inherited;
  try {
    return await promisify(execFile)(command, args, { cwd, env, maxBuffer: 1 << 26 });
  } catch (cause) {
    const { stdout, stderr } = cause as { stdout: string; stderr: string };
    throw new Error(`${command} ${args.join(' ')} failed:\n${stdout}\n${stderr}`, { cause });
  }
}

async function waitForPort(port: number): Promise<void> {
  for (;;) {
    try {
      await fetch(`http://localhost:${port}`);
      return;
    } catch {
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
}

import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { cp, mkdir, mkdtemp, realpath, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';

const run = promisify(execFile);
const root = fileURLToPath(new URL('../../..', import.meta.url));

const { exports } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
  exports: { '.': { import: { default: string } } };
};
const main = exports['.'].import.default;

/** An application of `first`, and parts of it that a library with the copy `second` has decorated. */
const script = `
import 'reflect-metadata';
import { NestFactory } from '@nestjs/core';
import { Injectable, Module } from '@nestjs/common';
import * as first from './first/MAIN';
import * as second from './second/MAIN';

const rows = { name: 'rows', model: { useFactory: () => (values) => values } };

class Method {
  ask(values) {
    return values;
  }
}
second.Batched()(Method.prototype, 'ask', Object.getOwnPropertyDescriptor(Method.prototype, 'ask'));

const useService = { provide: 'user', inject: [second.ServingService], useFactory: () => 1 };
const applications = {
  service: { imports: [first.ServingModule.forRoot()], providers: [useService] },
  method: { imports: [first.ServingModule.forRoot()], providers: [Method] },
  feature: {
    imports: [first.ServingModule.forRoot(), second.ServingModule.forFeature({ servings: [rows] })],
  },
  both: { imports: [first.ServingModule.forRoot(), second.ServingModule.forRoot()] },
  one: { imports: [first.ServingModule.forRoot({ servings: [rows] })] },
  other: { imports: [second.ServingModule.forRoot({ servings: [rows] })] },
};

async function boot(metadata) {
  class AppModule {}
  Module(metadata)(AppModule);
  const app = await NestFactory.createApplicationContext(AppModule, {
    logger: false,
    abortOnError: false,
  });
  return app;
}

if (process.argv[2] === 'apart') {
  const [one, other] = await Promise.all([boot(applications.one), boot(applications.other)]);
  console.log(await one.get(first.ServingService).run('rows', 1));
  console.log(await other.get(second.ServingService).run('rows', 2));
  await Promise.all([one.close(), other.close()]);
} else {
  await boot(applications[process.argv[2]]).then(
    () => console.log('started'),
    (error) => console.log(error.message),
  );
}
`;

describe('Two copies of the package', () => {
  let folder: string;

  beforeAll(async () => {
    folder = await realpath(await mkdtemp(join(tmpdir(), 'copies-')));
    await symlink(join(root, 'node_modules'), join(folder, 'node_modules'));
    await writeFile(join(folder, 'package.json'), '{ "type": "module" }');
    await writeFile(join(folder, 'main.js'), script.replaceAll('MAIN', main));
    for (const [copy, version] of [
      ['first', '1.0.0'],
      ['second', '2.0.0'],
    ] as const) {
      await mkdir(join(folder, copy));
      await cp(join(root, 'dist'), join(folder, copy, 'dist'), { recursive: true });
      const description = JSON.stringify({ name: 'nestjs-serving', type: 'module', version });
      await writeFile(join(folder, copy, 'package.json'), description);
    }
  });

  afterAll(() => rm(folder, { recursive: true, force: true }));

  async function output(application: string): Promise<string> {
    const { stdout } = await run('node', ['main.js', application], { cwd: folder });
    return stdout.trim();
  }

  it.each([
    ['service', 'ServingService comes from another copy of nestjs-serving than ServingModule'],
    ['method', 'Method.ask is @Batched(), and the application does not import ServingModule'],
    ['feature', 'ServingModule.forFeature registers [rows], and the application has no'],
    ['both', 'ServingModule.forRoot is imported 2 times, in AppModule'],
  ])('[D4] A mixed application fails at boot and names both: %s', async (application, message) => {
    const found = await output(application);

    expect(found).toContain(message);
    const code = dirname(main);
    expect(found).toContain(`${join(folder, 'first', code)} (version 1.0.0)`);
    expect(found).toContain(`${join(folder, 'second', code)} (version 2.0.0)`);
    expect(found).toContain('npm dedupe');
  });

  it('[D4] Two applications of one process may have a copy each', async () => {
    expect(await output('apart')).toBe('1\n2');
  });
});

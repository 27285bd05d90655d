// Lets the samples import `nestjs-serving` from this repository, as they import the published package elsewhere. A package cannot
// refer to itself from folders with a package.json of their own.
import { mkdirSync, rmSync, symlinkSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const packages = fileURLToPath(new URL('../sample/node_modules/', import.meta.url));

mkdirSync(packages, { recursive: true });
rmSync(`${packages}nestjs-serving`, { force: true });
// On Windows a junction needs no privilege; other systems ignore the type.
symlinkSync(root, `${packages}nestjs-serving`, 'junction');

#!/usr/bin/env node
import { CliOutput } from './output.js';
import { runProgram } from './program.js';

async function main(): Promise<void> {
  process.exitCode = await runProgram(process.argv.slice(2), new CliOutput());
}

void main();

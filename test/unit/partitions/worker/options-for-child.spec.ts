import { describe, expect, it } from '@jest/globals';
import { optionsForChild } from '../../../../lib/core/partitions/worker/process-channel.js';

describe('optionsForChild', () => {
  it('[5.2] A child process keeps the options for loading modules and for memory', () => {
    const options = [
      '--import',
      'tsx',
      '--require=./a.cjs',
      '-r',
      './b.cjs',
      '-C',
      'browser',
      '--max-old-space-size=64',
      '--no-warnings',
    ];

    expect(optionsForChild(options)).toEqual([...options, '--inspect-port=0']);
  });

  it.each([
    [['--input-type=module', '--eval', 'import "./app.js"']],
    [['-e', 'start()']],
    [['-pe', '1 + 1']],
    [['--inspect=9229', '--inspect-brk', '--inspect-port', '9230', '--inspect-wait=0.0.0.0']],
    [['--watch', '--watch-path', 'src']],
    [['--test', '--test-reporter=spec', '--test-concurrency', '1']],
    [['--env-file=.env', '--env-file-if-exists', '.env.local']],
  ])('[5.2] A child process drops the options for scripts and debuggers: %j', (options) => {
    expect(optionsForChild(['--no-warnings', ...options, '--expose-gc'])).toEqual([
      '--no-warnings',
      '--expose-gc',
      '--inspect-port=0',
    ]);
  });
});

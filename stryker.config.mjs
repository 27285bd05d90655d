/**
 * `npm run mutation`: whether the tests of batching notice when its code is changed.
 *
 * @type {import('@stryker-mutator/api/core').PartialStrykerOptions}
 */
export default {
  mutate: ['lib/core/batching/**/*.ts'],
  thresholds: { high: 90, low: 85, break: 85 },
  testRunner: 'jest',
  // What Node keeps of the modules of each run is given back with the process.
  maxTestRunnerReuse: 50,
  testRunnerNodeArgs: ['--experimental-vm-modules', '--no-warnings'],
  coverageAnalysis: 'perTest',
  jest: {
    enableFindRelatedTests: false,
    config: {
      testMatch: ['<rootDir>/test/unit/batching/**/*.spec.ts'],
      // Ten seconds of load for each of a thousand changes; what it asks of single rows, the others do too.
      testPathIgnorePatterns: ['/(overload|target-loads)\\.spec\\.ts$'],
      runner: '<rootDir>/test/fixtures/first-failure-runner.js',
      setupFiles: ['<rootDir>/test/fixtures/async/same-runs.ts'],
    },
  },
  ignorePatterns: ['/sample', '/bench-results', '/test-results', '/.cache', '**/dist'],
  tempDirName: '.cache/mutation',
  cleanTempDir: 'always',
  incrementalFile: '.cache/mutation.json',
  reporters: ['clear-text', 'html'],
  clearTextReporter: { allowColor: false, logTests: false, reportTests: false },
  htmlReporter: { fileName: 'test-results/mutation.html' },
};

import { availableParallelism } from 'node:os';

/** @type {import('jest').Config} */
export default {
  testMatch: [
    '<rootDir>/test/{unit,e2e}/**/*.spec.ts',
    '<rootDir>/test/{unit,e2e}/**/*.e2e-spec.ts',
  ],
  testEnvironment: './test/environment.cjs',
  // Workers keep the modules of every spec: without a limit they end too slowly for Jest.
  workerIdleMemoryLimit: '512MB',
  setupFiles: ['<rootDir>/test/fixtures/seed.ts'],
  setupFilesAfterEnv: ['<rootDir>/test/fixtures/time-limit.ts'],
  extensionsToTreatAsEsm: ['.ts'],
  moduleFileExtensions: ['ts', 'js', 'json'],
  moduleNameMapper: {
    '^nestjs-serving$': '<rootDir>/lib/index.ts',
    '^nestjs-serving/board$': '<rootDir>/lib/extensions/board/index.ts',
    '^nestjs-serving/distribution$': '<rootDir>/lib/extensions/distribution/index.ts',
    '^nestjs-serving/inference-protocol$': '<rootDir>/lib/extensions/inference-protocol/index.ts',
    '^nestjs-serving/opentelemetry$': '<rootDir>/lib/extensions/opentelemetry/index.ts',
    '^nestjs-serving/openai$': '<rootDir>/lib/extensions/openai/index.ts',
    '^nestjs-serving/tasks$': '<rootDir>/lib/extensions/tasks/index.ts',
    '^nestjs-serving/terminus$': '<rootDir>/lib/extensions/terminus/index.ts',
    '^nestjs-serving/testing$': '<rootDir>/lib/extensions/testing/index.ts',
    // Neither a thread nor a process can run TypeScript, so the tests start the built scripts of the same source.
    '/entry-script\\.js$': '<rootDir>/test/fixtures/entry-script.ts',
    '^(\\.{1,2}/.*)\\.js$': '$1',
    // Without koffi, models run in threads.
    ...(process.env.WITHOUT_KOFFI && { '^koffi$': '<rootDir>/test/fixtures/native/no-koffi.js' }),
  },
  transform: { '^.+\\.ts$': '<rootDir>/test/transform.js' },
  modulePathIgnorePatterns: [
    '<rootDir>/dist',
    '<rootDir>/.cache',
    '/sample/[^/]+/dist/',
    '/test/(benchmark|chaos|fuzz|soak)/dist/',
  ],
  coverageProvider: 'v8',
  collectCoverageFrom: [
    'lib/**/*.ts',
    '!lib/core/partitions/worker/*.entry.ts',
    '!lib/core/partitions/worker/worker-host.ts',
  ],
  reporters: ['default', '<rootDir>/test/summary-reporter.js'],
  // One more than cores, since many tests wait: for processes that start, and for real clocks.
  maxWorkers: availableParallelism() + 1,
};

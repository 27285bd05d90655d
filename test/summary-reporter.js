import { mkdirSync, writeFileSync } from 'node:fs';
import { join, relative } from 'node:path';

/**
 * Ends the output with the reasons of skipped tests, and one plain line that any CI can read. Lists
 * the specs with skipped tests in `test-results/skipped-specs.txt`: `.ci/run` runs these once more,
 * with all that they need.
 */
export default class SummaryReporter {
  #error;

  constructor({ rootDir }) {
    this.rootDir = rootDir;
  }

  onRunComplete(
    _contexts,
    { numPassedTests, numFailedTests, numFailedTestSuites, numPendingTests, testResults },
  ) {
    const skipped = testResults.filter(({ numPendingTests: pending }) => pending > 0);
    const folder = join(this.rootDir, 'test-results');
    mkdirSync(folder, { recursive: true });
    writeFileSync(
      join(folder, 'skipped-specs.txt'),
      skipped.map(({ testFilePath }) => `${relative(this.rootDir, testFilePath)}\n`).join(''),
    );
    for (const [reason, count] of reasonsOf(skipped)) {
      console.log(`SKIPPED ${count} tests. ${reason}`);
    }
    // Other systems skip what only Linux has.
    if (process.env.CI && process.platform === 'linux' && numPendingTests > 0) {
      this.#error = new Error(`${numPendingTests} tests were skipped, and CI skips none`);
    }
    const failed = Math.max(numFailedTests, numFailedTestSuites, this.#error ? 1 : 0);
    console.log(`${numPassedTests} passed, ${failed} failed, ${numPendingTests} skipped`);
  }

  getLastError() {
    return this.#error;
  }
}

/** The reasons in the names that `test/fixtures/describe-unless.ts` gives, with the tests of each. */
function reasonsOf(specs) {
  const reasons = new Map();
  for (const { ancestorTitles, title, status } of specs.flatMap(({ testResults }) => testResults)) {
    if (status === 'pending') {
      const names = [...ancestorTitles, title].map((name) => name.split(' SKIPPED: ')[1]);
      const reason = names.find(Boolean) ?? 'No reason is given.';
      reasons.set(reason, (reasons.get(reason) ?? 0) + 1);
    }
  }
  return reasons;
}

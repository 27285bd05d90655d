/** Ends the output with one plain line that any CI can read. */
export default class SummaryReporter {
  onRunComplete(
    _contexts,
    { numPassedTests, numFailedTests, numFailedTestSuites, numPendingTests },
  ) {
    const failed = Math.max(numFailedTests, numFailedTestSuites);
    console.log(`${numPassedTests} passed, ${failed} failed, ${numPendingTests} skipped`);
  }
}

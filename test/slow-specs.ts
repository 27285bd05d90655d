/** Milliseconds that a test or hook may take. Only one that hangs reaches it, also on a machine that is six times slower. */
const LIMIT = 60_000;

/**
 * Specs in which a test or hook takes more than ten seconds on a busy machine with two cores: a path
 * or its beginning, minutes, and the reason.
 */
export const slowSpecs: readonly (readonly [path: string, minutes: number, reason: string])[] = [
  ['test/e2e/application/hostile-input', 15, 'hundreds of hostile calls in one test'],
  ['test/e2e/application/lifecycle', 5, 'starts a process per test, and waits for its end'],
  ['test/e2e/application/swagger', 5, 'builds an application'],
  ['test/e2e/board/page', 5, 'a browser'],
  ['test/e2e/chaos/', 10, 'an application under load whose processes are killed'],
  ['test/e2e/cli/', 5, 'starts applications, and measures them under load'],
  ['test/e2e/development', 10, 'runs Jest, and compiles lib'],
  ['test/e2e/distribution/broker-restarts', 5, 'restarts brokers'],
  ['test/e2e/distribution/cut-networks', 5, 'waits until nodes notice that others are gone'],
  ['test/e2e/distribution/grpc', 5, 'kills a node, and starts it again'],
  ['test/e2e/distribution/large-loads', 20, 'many megabytes between processes, on busy cores'],
  ['test/e2e/distribution/processes', 10, 'starts five processes and more'],
  ['test/e2e/extensions', 15, 'compiles a copy of lib without its extensions'],
  ['test/e2e/inference-protocol/', 5, 'clients in Python; every datatype on two platforms'],
  ['test/e2e/manual/', 5, 'starts processes, clients and brokers as the manual says'],
  ['test/e2e/openai/', 10, 'clients in Python and Node'],
  ['test/e2e/package', 10, 'packs, installs and compiles the package'],
  ['test/e2e/parity/axon-serving', 5, 'warms up many sizes in threads'],
  ['test/e2e/partitions/', 5, 'threads and processes that restart; property tests with models'],
  ['test/e2e/random/', 20, 'random calls to threads, processes, servers and nodes'],
  ['test/e2e/samples/', 10, 'installs, builds and starts applications, with models and brokers'],
  ['test/e2e/soak', 5, 'thousands of calls in each test'],
  ['test/e2e/starters/', 20, 'installs, builds, tests and bundles new applications'],
  ['test/e2e/tasks/', 10, 'real models; reference answers of Python'],
  ['test/e2e/versions/', 5, 'reloads models in processes under calls'],
  ['test/unit/batching/admission-oracle', 10, 'simulated loads against a search of all plans'],
  ['test/unit/batching/overload', 5, 'ten seconds of load, in virtual time'],
  ['test/unit/batching/returning-rows', 5, 'seconds of load, in virtual time'],
  ['test/unit/batching/target-loads', 10, 'minutes of load, in virtual time'],
  ['test/unit/compiler-messages', 5, 'runs the compiler'],
  ['test/unit/house', 5, 'parses all of lib, and starts applications'],
  ['test/unit/manual', 5, 'writes the tables of options from the types of lib'],
  ['test/unit/openai/known-fields', 5, 'reads the types of other packages in a process'],
  ['test/unit/serving/any-serving', 10, 'random servings under random calls'],
  ['test/unit/features/sequences/sequences.property', 5, 'random sequences'],
  ['test/unit/serving/versions.property', 5, 'random reloads'],
  ['test/unit/tasks/', 5, 'starts ONNX models, for many settings of their files'],
];

/**
 * Milliseconds that a test of the spec may take. `TEST_TIMEOUT_FACTOR` multiplies it for a slower machine;
 * `SEED` runs ten times as many cases of property tests.
 */
export function limitOf(
  spec: string,
  { TEST_TIMEOUT_FACTOR = '1', SEED }: NodeJS.ProcessEnv,
): number {
  const factor = Number(TEST_TIMEOUT_FACTOR);
  if (!(factor > 0)) {
    throw new Error(`TEST_TIMEOUT_FACTOR must be a positive number, not ${TEST_TIMEOUT_FACTOR}`);
  }
  const path = spec.replaceAll('\\', '/');
  const [, minutes = 1] = slowSpecs.find(([each]) => path.startsWith(each)) ?? [];
  return LIMIT * minutes * factor * (SEED === undefined ? 1 : 10);
}

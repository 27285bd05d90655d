import { TestEnvironment } from 'jest-environment-node';

const ARRAYS =
  /^(ArrayBuffer|SharedArrayBuffer|DataView|(Big)?(Uint|Int|Float)\d+(Clamped)?Array)$/;

/**
 * Jest's environment for Node, with Node's own typed arrays: Jest gives each test file its own
 * classes, which onnxruntime-node and threads do not recognize. Use it for tests that call
 * onnxruntime-node directly, or check `instanceof Float32Array` of plain values from a thread or
 * process.
 */
export default class ServingTestEnvironment extends TestEnvironment {
  override async setup(): Promise<void> {
    await super.setup();
    const own = Object.entries(Object.getOwnPropertyDescriptors(globalThis));
    Object.defineProperties(
      this.global,
      Object.fromEntries(own.filter(([name]) => ARRAYS.test(name))),
    );
  }
}

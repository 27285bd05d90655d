const { types } = require('node:util');
const { TestEnvironment } = require('jest-environment-node');
const { env } = require('onnxruntime-common');

// onnxruntime prints every error that it throws, too, and those that tests provoke would fill the
// log of a green run. What is printed is decided for all threads of a process by the first that
// uses the runtime: that is this one.
env.logLevel = 'fatal';
require('onnxruntime-node/dist/binding.js').initOrt();

/**
 * Jest runs tests in a context of its own, with typed arrays and errors of its own. Native code and
 * threads hand over those of the outer one, and onnxruntime refuses tensors of any other; so the
 * tests get the outer ones too.
 */
class SharedRealmEnvironment extends TestEnvironment {
  async setup() {
    await super.setup();
    const binary =
      /^(ArrayBuffer|SharedArrayBuffer|DataView|(Big)?(Uint|Int|Float)(8|16|32|64)(Clamped)?Array)$/;
    for (const name of Object.getOwnPropertyNames(globalThis).filter((key) => binary.test(key))) {
      this.global[name] = globalThis[name];
    }
    Object.defineProperty(this.global.Error, Symbol.hasInstance, {
      value(value) {
        return (
          Function.prototype[Symbol.hasInstance].call(this, value) ||
          (this.name === 'Error' && types.isNativeError(value))
        );
      },
    });
  }
}

module.exports = SharedRealmEnvironment;

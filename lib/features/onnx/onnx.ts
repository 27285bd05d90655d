import { isOwnThread } from '../../core/definition/combinations.js';
import { modelOf } from '../../core/definition/resolve-definition.js';
import type { ModelIsolation } from '../../core/definition/serving-definition.js';
import { formatValue } from '../../core/format.js';
import type { Feature } from '../../core/serving/feature.js';
import { inWorkers, modelEngine, onMainThread, type OpenModel } from './model-engine.js';
import { natively, nativelyOrInThreads } from './native-engine.js';
import { partitionPerDevice, providersOf } from './onnx-session.js';

export const onnx: Feature = {
  combinations: [
    (facts) =>
      facts.runner.blockingLimit !== undefined &&
      !isOwnThread(facts) &&
      `blockingLimit ${facts.runner.blockingLimit} is for isolation: 'none'; the runs of a thread or ` +
        'process do not hold the event loop, so leave it out',
    (facts) =>
      isOwnThread(facts) &&
      (facts.definition.partitions === true || facts.partitions.length > 1) &&
      `partitions ${formatValue(facts.definition.partitions)} cannot run in parallel in the ` +
        "application's own thread (isolation: 'none'); leave partitions out, or use isolation: 'thread'",
    (facts) =>
      isOwnThread(facts) &&
      providersOf(facts.partitions[0]!).some(({ name }) => name === 'webgpu') &&
      "the execution provider \"webgpu\" needs isolation: 'thread' or 'process', since models on it " +
        'wait for each other',
  ],
  engineOf(name, { file, isolation, blockingLimit = 2, ...model }) {
    if (file === undefined) {
      return undefined;
    }
    const { inputs = {}, outputs = {}, fetches, state, sha256 } = model;
    const ports = { inputs, outputs, fetches, state };
    return modelEngine(modelOf(name, { file, sha256 }), ports, openFor(isolation, blockingLimit));
  },
  devicesOf: partitionPerDevice,
};

function openFor(isolation: ModelIsolation | undefined, blockingLimit: number): OpenModel {
  switch (isolation) {
    case undefined:
      return nativelyOrInThreads;
    case 'native':
      return natively;
    case 'none':
      return onMainThread(blockingLimit);
    default:
      return inWorkers(isolation);
  }
}

export {
  feedsOf,
  inputsAmong,
  inSteps,
  ModelReply,
  type RunStep,
} from '../core/partitions/model/model-io.js';
export {
  axisOfInput,
  type DeclaredAxes,
  type DeclaredPorts,
  describePort,
  dynamicAxes,
  type FileSignature,
  type ModelPort,
  type ModelSignature,
  rowMarksOf,
  signatureOf,
  warningsOf,
} from '../core/partitions/model/model-signature.js';
export { externalFilesIn } from '../features/onnx/model-source.js';
export { openForThreads } from '../features/onnx/native-engine.js';
export type { SessionOfThread } from '../features/onnx/native-session.js';
export { sessionForThread } from '../features/onnx/onnx-model.js';
export {
  type AcceptedAxes,
  type Fetching,
  isRemote,
  readAddressesWith,
  type RemoteRepository,
  remoteRepositoryOf,
} from '../core/partitions/model/remote-models.js';
export { withVariableAxes } from '../core/partitions/model/variable-axes.js';

export { feedsOf, inputsAmong, ModelReply } from '../core/partitions/onnx/model-io.js';
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
} from '../core/partitions/onnx/model-signature.js';
export { externalFilesIn } from '../core/partitions/onnx/model-source.js';
export { inSteps, type RunStep } from '../core/partitions/onnx/onnx-model.js';
export { withShortSpin } from '../core/partitions/onnx/onnx-session.js';
export {
  type AcceptedAxes,
  type Fetching,
  isRemote,
  readAddressesWith,
  type RemoteRepository,
  remoteRepositoryOf,
} from '../core/partitions/onnx/remote-models.js';
export { withVariableAxes } from '../core/partitions/onnx/variable-axes.js';

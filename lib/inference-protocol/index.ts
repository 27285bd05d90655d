/**
 * `InferenceProtocolModule` offers the application's servings to clients of the Open Inference
 * Protocol, version 2.
 *
 * @module
 */

export { InferenceProtocolModule } from './inference-protocol.module.js';
export type {
  DeclaredTensors,
  GrpcDoorOptions,
  GrpcDoorTls,
  InferenceProtocolOptions,
  OfferedServing,
  ProtocolGuard,
  RepositoryOptions,
} from './options.js';

/**
 * The Open Inference Protocol, version 2, both ways: `InferenceProtocolModule` offers the
 * application's servings to its clients, and `endpoint` runs a serving's batches on its servers.
 *
 * @module inference-protocol
 */

export type {
  EndpointMetadata,
  EndpointModel,
  EndpointOptions,
  EndpointTls,
} from './client/endpoint-rules.js';
export { endpoint, type Endpoints } from './client/endpoint-rules.js';
export { InferenceProtocolModule } from './server/inference-protocol.module.js';
export type {
  DeclaredTensors,
  GrpcDoorOptions,
  GrpcDoorTls,
  InferenceProtocolOptions,
  OfferedServing,
  ProtocolGuard,
  RepositoryOptions,
} from './server/options.js';

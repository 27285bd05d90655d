export {
  type ClusterNode,
  healthOf,
  type LocalPart,
  type RemotePreprocess,
  SERVING_ROUTER,
  type ServingProfile,
  type ServingRouter,
  type ServingStatus,
} from '../core/serving/serving.js';
export { guardList, ModuleGuards } from '../nest/access-guards.js';
export { BatchedMethods } from '../nest/batched/batched-methods.js';
export { versionOf } from '../nest/copies.js';
export { clientErrorOf } from '../nest/serving-exception.filter.js';
export { DEFAULT_EXTRAS, withExtras } from '../nest/serving.module-definition.js';
export { getHandlerToken } from '../nest/serving.providers.js';
export { ServingRegistry } from '../nest/serving.registry.js';
export { features } from '../features/features.js';

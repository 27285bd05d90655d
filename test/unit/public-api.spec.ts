import { expect, it } from '@jest/globals';
import * as distribution from '../../lib/extensions/distribution/index.js';
import * as api from '../../lib/index.js';
import * as testing from '../../lib/extensions/testing/index.js';

it('The package exports exactly the documented names', () => {
  expect(Object.keys(api).toSorted()).toMatchInlineSnapshot(`
   [
     "ApiKeyGuard",
     "Batch",
     "BatchFailedError",
     "Batched",
     "CallCancelledError",
     "CallCycleError",
     "DONE",
     "DeadlineExceededError",
     "DeadlineTooShortError",
     "InjectServing",
     "InvalidBatchError",
     "InvalidInputError",
     "InvalidOutputError",
     "InvalidServingError",
     "LocalServing",
     "LoginGuard",
     "NodeLostError",
     "OverloadedError",
     "PENDING",
     "PartitionLostError",
     "ProviderUnavailableError",
     "RequestSignal",
     "RequestTooLargeError",
     "RunTimeoutError",
     "Serving",
     "ServingClosedError",
     "ServingError",
     "ServingExceptionFilter",
     "ServingLoadError",
     "ServingModule",
     "ServingRpcExceptionFilter",
     "ServingService",
     "ServingSession",
     "ServingStream",
     "ServingUnavailableError",
     "SessionEndedError",
     "SlowConsumerError",
     "Tensor",
     "TensorBody",
     "TensorJsonInterceptor",
     "UnknownKeyError",
     "UnknownServingError",
     "UnknownVersionError",
     "asCaller",
     "contentHash",
     "createServing",
     "currentOrigin",
     "currentSignal",
     "defineServing",
     "getServingSchemas",
     "getServingToken",
     "isServingError",
     "last",
     "withMetadata",
     "withOrigin",
   ]
  `);
});

it('The testing entry point exports exactly the documented names', () => {
  expect(Object.keys(testing).toSorted()).toMatchInlineSnapshot(`
   [
     "BatchScript",
     "VirtualTime",
     "overrideServing",
     "recordBatches",
     "settle",
   ]
  `);
});

it('exports for clusters exactly what the manual names', () => {
  expect(Object.keys(distribution).toSorted()).toMatchInlineSnapshot(`
   [
     "MemoryNetwork",
     "NodeGoneError",
     "ServingCluster",
     "ServingClusterModule",
     "packetLength",
   ]
  `);
});

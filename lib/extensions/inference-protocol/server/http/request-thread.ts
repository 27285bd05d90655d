import { doJobs, type Parcel } from '../../../../encoding/job-thread.js';
import { type LargeRequest, type PackedRequest, requestIn } from './read-request.js';

/** Runs in a thread and moves the tensors. */
function read({ body, length, model, version }: LargeRequest): Parcel<PackedRequest> {
  const bytes = Buffer.from(body.buffer, body.byteOffset, body.length);
  const request = requestIn(bytes, length, { model, version });
  const inputs = [...request.inputs].map(
    ([name, { type, dims, data }]) => [name, { type, dims, data }] as const,
  );
  const buffers = inputs.flatMap(([, { data }]) => (Array.isArray(data) ? [] : [data.buffer]));
  return {
    content: { ...request, inputs: new Map(inputs) },
    moved: [...new Set(buffers)] as ArrayBuffer[],
  };
}

void doJobs(() => read);

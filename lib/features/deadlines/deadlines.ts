import type { AdmissionPolicy } from '../../core/batching/admission.js';
import type { Feature } from '../../core/serving/feature.js';
import { Timing } from './timing.js';

export const timing: AdmissionPolicy = {
  isForAll: ({ hasTargets = false }) => hasTargets,
  open: (...site) => new Timing(...site),
};

/** Calls that can't be answered in time are refused, and latency targets size the batches. */
export const deadlines: Feature = {
  admissionOf: () => timing,
};

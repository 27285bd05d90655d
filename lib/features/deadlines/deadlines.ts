import type { Feature } from '../../core/serving/feature.js';
import { Timing } from './timing.js';

/** Calls that can't be answered in time are refused, and latency targets size the batches. */
export const deadlines: Feature = {
  admissionRule: (...site) => new Timing(...site),
};

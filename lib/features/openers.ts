import type { Openers } from '../core/partitions/engine.js';
import { openSequences } from './sequences/sequences.js';

/** The features' partitions that batch continuously, in the application's thread and in others. */
export const openers: Openers = { sequences: openSequences };

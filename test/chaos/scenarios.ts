import type { Scenario } from './scenario.js';
import { attack } from './scenarios/attack.js';
import { circuit } from './scenarios/circuit.js';
import { deaf } from './scenarios/deaf.js';
import { kill, killOnce, killWithoutRetries } from './scenarios/kill.js';
import { leave } from './scenarios/leave.js';
import { leaveStreams } from './scenarios/leave-streams.js';
import { aborts, fillsMemory } from './scenarios/poison.js';
import { pause, stop } from './scenarios/stop.js';
import {
  killApplication,
  terminateCrippled,
  terminateExpress,
  terminateFastify,
} from './scenarios/terminate.js';

/** In the order of the table. */
export const scenarios: readonly Scenario[] = [
  kill,
  killWithoutRetries,
  killOnce,
  stop,
  pause,
  aborts,
  fillsMemory,
  leave,
  leaveStreams,
  deaf,
  circuit,
  terminateExpress,
  terminateFastify,
  terminateCrippled,
  killApplication,
  attack,
];

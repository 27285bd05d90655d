import { describe } from '@jest/globals';
import { circuit } from '../../chaos/scenarios/circuit.js';
import { kill, killOnce, killWithoutRetries } from '../../chaos/scenarios/kill.js';
import { aborts, fillsMemory } from '../../chaos/scenarios/poison.js';
import { pause, stop } from '../../chaos/scenarios/stop.js';
import { itKeepsItsPromises } from '../../fixtures/http/chaos.js';

describe('An application under load, whose partition processes fail', () => {
  itKeepsItsPromises('[5.6] No call fails when processes are killed', kill);
  itKeepsItsPromises(
    '[5.6] Without retries the calls of killed processes fail',
    killWithoutRetries,
  );
  itKeepsItsPromises(
    '[5.6] [4.6] Without idempotence the batch of a killed process fails, and no row runs twice',
    killOnce,
  );
  itKeepsItsPromises(
    '[5.6] When processes are stopped all calls are answered, by the run timeout at the latest',
    stop,
  );
  itKeepsItsPromises(
    '[5.6] When processes are stopped for a while the others go on and no call is lost',
    pause,
  );
  itKeepsItsPromises(
    '[5.6] [6.4] When processes abort at one row only the call with that row fails',
    aborts,
  );
  itKeepsItsPromises(
    '[5.6] [6.4] When processes run out of memory at one row only the call with that row fails',
    fillsMemory,
  );
  itKeepsItsPromises(
    '[5.6] [9.2] When all processes die at every batch, calls fail at once and health has the reason',
    circuit,
  );
});

import { describe } from '@jest/globals';
import { circuit } from '../../chaos/scenarios/circuit.js';
import { kill, killOnce, killWithoutRetries } from '../../chaos/scenarios/kill.js';
import { aborts, fillsMemory } from '../../chaos/scenarios/poison.js';
import { pause, stop } from '../../chaos/scenarios/stop.js';
import { itKeepsItsPromises } from '../../fixtures/http/chaos.js';

describe('An application under load, of which partition processes', () => {
  itKeepsItsPromises('[5.6] are killed, fails no call', kill);
  itKeepsItsPromises(
    '[5.6] are killed, fails calls where there are no retries',
    killWithoutRetries,
  );
  itKeepsItsPromises(
    '[5.6] [4.6] are killed, fails the batch that each held, and runs no row twice, where that does harm',
    killOnce,
  );
  itKeepsItsPromises(
    '[5.6] are stopped, answers all calls within and after their runTimeout',
    stop,
  );
  itKeepsItsPromises(
    '[5.6] are stopped for a while, goes on with the others and loses nothing',
    pause,
  );
  itKeepsItsPromises('[5.6] [6.4] abort at one row, fails the call with that row alone', aborts);
  itKeepsItsPromises(
    '[5.6] [6.4] are out of memory at one row, fails the call with that row alone',
    fillsMemory,
  );
  itKeepsItsPromises(
    '[5.6] [9.2] all die at every batch, fails calls at once, with the reason at its health',
    circuit,
  );
});

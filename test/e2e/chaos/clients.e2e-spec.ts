import { describe } from '@jest/globals';
import { attack } from '../../chaos/scenarios/attack.js';
import { deaf } from '../../chaos/scenarios/deaf.js';
import { leave } from '../../chaos/scenarios/leave.js';
import { leaveStreams } from '../../chaos/scenarios/leave-streams.js';
import {
  killApplication,
  terminateCrippled,
  terminateExpress,
  terminateFastify,
} from '../../chaos/scenarios/terminate.js';
import { itKeepsItsPromises } from '../../fixtures/http/chaos.js';

describe('An application under load, whose clients leave or stop reading', () => {
  itKeepsItsPromises(
    '[7.3] When waiting and running clients leave, the others are answered and the waiting rows do not run',
    leave,
  );
  itKeepsItsPromises(
    '[7.3] [8.2] When clients leave during a stream, the others get all of theirs and unread generators end',
    leaveStreams,
  );
  itKeepsItsPromises(
    '[8.3] When clients stop reading their streams, a bounded part is kept and their generators end',
    deaf,
  );
});

describe('An application whose ports are attacked', () => {
  itKeepsItsPromises(
    '[P4] Half-open, slow, reset and malformed connections hold no call of others, and leave no file open',
    attack,
  );
});

describe('An application under load', () => {
  itKeepsItsPromises(
    '[9.3] An application on Express answers all accepted calls after SIGTERM',
    terminateExpress,
  );
  itKeepsItsPromises(
    '[9.3] An application on Fastify answers all accepted calls after SIGTERM',
    terminateFastify,
  );
  itKeepsItsPromises(
    '[5.6] [9.3] An application whose partitions have all died answers all accepted calls after SIGTERM',
    terminateCrippled,
  );
  itKeepsItsPromises(
    '[5.6] [9.3] An application that is killed leaves no process',
    killApplication,
  );
});

import { describe } from '@jest/globals';
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

describe('An application under load, whose clients', () => {
  itKeepsItsPromises(
    '[7.3] leave while they wait or run, answers the others, and runs no row of those who waited',
    leave,
  );
  itKeepsItsPromises(
    '[7.3] [8.2] leave in the middle of a stream, gives the others all of theirs, and ends what nobody reads',
    leaveStreams,
  );
  itKeepsItsPromises(
    '[8.3] read no more of their streams, keeps a bounded part of them, and ends their generators',
    deaf,
  );
});

describe('An application under load', () => {
  itKeepsItsPromises(
    '[9.3] that is told to end, answers all that it has accepted, on Express',
    terminateExpress,
  );
  itKeepsItsPromises(
    '[9.3] that is told to end, answers all that it has accepted, on Fastify',
    terminateFastify,
  );
  itKeepsItsPromises(
    '[5.6] [9.3] that is told to end when all of its partitions have died, answers all that it has accepted',
    terminateCrippled,
  );
  itKeepsItsPromises('[5.6] [9.3] that is killed, leaves no process behind', killApplication);
});

import { board } from './figures/board.js';
import { cuda } from './figures/cuda.js';
import { batchGain } from './figures/batch-gain.js';
import { embeddings } from './figures/embeddings.js';
import { endpoint } from './figures/endpoint.js';
import { engine } from './figures/engine.js';
import { generation } from './figures/generation.js';
import { isolation } from './figures/isolation.js';
import { loneCall } from './figures/lone-call.js';
import { overload } from './figures/overload.js';
import { precedence } from './figures/precedence.js';
import { registry } from './figures/registry.js';
import { remoteCall } from './figures/remote-call.js';
import { besideNx } from './figures/nx.js';
import { callCost } from './figures/call-cost.js';
import { memory } from './figures/memory.js';
import { modelServer } from './figures/model-server.js';
import { native } from './figures/native.js';
import { neighbours } from './figures/neighbours.js';
import { queueScale } from './figures/queue-scale.js';
import { refusals } from './figures/refusals.js';
import { route } from './figures/route.js';
import { sessions } from './figures/sessions.js';
import { mixedLengths } from './figures/mixed-lengths.js';
import { saturation } from './figures/saturation.js';
import { start } from './figures/start.js';
import { targets } from './figures/targets.js';
import { sequences } from './figures/sequences.js';
import type { Figure, Measurement } from './harness/measurement.js';
import { full, type Plan, quick } from './harness/plan.js';

const figures: Record<Figure, (plan: Plan) => Promise<Measurement[]>> = {
  P1: saturation,
  P2: engine,
  P3: loneCall,
  P4: endpoint,
  P5: endpoint,
  P6: batchGain,
  P7: isolation,
  P8: overload,
  P9: precedence,
  P10: registry,
  P11: remoteCall,
  P12: neighbours,
  P13: route,
  P14: callCost,
  P15: besideNx,
  P16: memory,
  P17: refusals,
  P18: sequences,
  P19: sessions,
  P20: mixedLengths,
  P21: targets,
  P22: modelServer,
  P23: board,
  P24: embeddings,
  P25: generation,
  P26: queueScale,
  P27: start,
  P28: cuda,
  P29: native,
};

// A process of its own: memory and compiled code of other figures would count in this one.
const [name, plan] = process.argv.slice(2);
process.send!(await figures[name as Figure](plan === 'quick' ? quick : full));
process.disconnect();

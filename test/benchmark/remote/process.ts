import { startOwner } from './node.js';
import { startRawServer } from './raw.js';
import type { Way } from './way.js';

export type Side = 'serving' | 'raw';

/** One side of P11 in a process of its own, which ends with its parent. */
const [side, way] = [process.argv[2] as Side, JSON.parse(process.argv[3]!) as Way];
if (side === 'serving') {
  const app = await startOwner(way);
  process.on('disconnect', () => void app.close());
} else {
  await startRawServer(way);
  process.on('disconnect', () => process.exit());
}
process.send?.('ready');

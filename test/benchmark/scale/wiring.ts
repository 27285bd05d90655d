// #region wiring
import { Transport } from '@nestjs/microservices';
import type { DistributionOptions } from 'nestjs-serving/distribution';

const port = Number(process.env['MODEL_PORT']);

/** The one node with the model, for the web processes of the same machine. */
export const modelNode: DistributionOptions = {
  transport: Transport.TCP,
  options: { host: '127.0.0.1', port },
};

export const webNode: DistributionOptions = {
  transport: Transport.TCP,
  peers: [`127.0.0.1:${port}`],
  // Calls wait for a model process that starts again.
  discoveryTimeout: 10_000,
};
// #endregion

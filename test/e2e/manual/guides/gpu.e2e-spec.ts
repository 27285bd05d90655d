// #region gpu
import { Injectable, Logger, type OnApplicationBootstrap } from '@nestjs/common';
import { defineServing, InjectServing, type ServingOf } from 'nestjs-serving';

export const digits = defineServing({
  name: 'digits',
  model: {
    file: 'digits.onnx',
    session: { executionProviders: ['cuda', 'cpu'] }, // In production ['cuda'] alone.
  },
});

/** Logs the device of each partition when the application has started. */
@Injectable()
export class DeviceLog implements OnApplicationBootstrap {
  private readonly logger = new Logger('Devices');

  constructor(@InjectServing(digits) private readonly serving: ServingOf<typeof digits>) {}

  onApplicationBootstrap(): void {
    const providers = this.serving.partitions().map(({ provider }) => provider);
    this.logger.log(`digits runs on ${providers.join(', ')}`);
  }
}
// #endregion
import { expect, it } from '@jest/globals';
import { Test } from '@nestjs/testing';
import { ServingModule } from 'nestjs-serving';
import { inFolder } from '../../../fixtures/serving/in-folder.js';

inFolder('sample/01-digits/model');

it("[5.7] The manual's log of devices names the provider that runs the model", async () => {
  const lines: string[] = [];
  const logger = { log: (line: string) => lines.push(line), error: () => {}, warn: () => {} };
  const testing = await Test.createTestingModule({
    imports: [ServingModule.forRoot({ servings: [digits] })],
    providers: [DeviceLog],
  })
    .setLogger(logger)
    .compile();
  const app = await testing.createNestApplication({ logger }).init();
  await app.close();

  expect(lines).toContainEqual(expect.stringMatching(/^digits runs on (cuda|cpu)$/));
});

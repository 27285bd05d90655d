import { expect, it } from '@jest/globals';
import { Test } from '@nestjs/testing';
// #region log
import { Injectable, Logger } from '@nestjs/common';
import { ServingService } from 'nestjs-serving';

@Injectable()
export class BatchLog {
  private readonly logger = new Logger('Batches');

  constructor(servings: ServingService) {
    servings
      .eventsOf('batch:end')
      .subscribe(({ serving, rows, runTime }) =>
        this.logger.log(`${serving}: ${rows} rows in ${runTime.toFixed(1)} ms`),
      );
  }
}
// #endregion
import { ServingModule } from 'nestjs-serving';

it('The log of batches has a line per batch', async () => {
  const lines: string[] = [];
  const logger = { log: (line: string) => lines.push(line), error: () => {}, warn: () => {} };
  const doubled = {
    name: 'doubled',
    model: { useFactory: () => (numbers: number[]) => numbers.map((number) => 2 * number) },
  };
  const testing = await Test.createTestingModule({
    imports: [ServingModule.forRoot({ servings: [doubled] })],
    providers: [BatchLog],
  })
    .setLogger(logger)
    .compile();
  const app = await testing.createNestApplication({ logger }).init();

  await Promise.all([1, 2, 3].map((row) => app.get(ServingService).batchedRun('doubled', row)));
  await app.close();

  expect(lines).toContainEqual(expect.stringMatching(/^doubled: 3 rows in \d+\.\d ms$/));
});

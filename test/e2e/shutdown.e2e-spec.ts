import { Controller, Get } from '@nestjs/common';
import { expect, it } from '@jest/globals';
import { Batched, caller, ServingModule, ServingService } from 'nestjs-serving';
import { describeOnPlatforms } from '../fixtures/platforms.js';

const A_DAY = 24 * 60 * 60 * 1000;
const upper = {
  name: 'upper',
  useFactory: () => (texts: string[]) => texts.map((text) => text.toUpperCase()),
  batchTimeout: A_DAY,
};

/** The calls that have come so far, and who waits for the next. */
let arrived: () => void;

@Controller()
class SlowController {
  constructor(private readonly servings: ServingService) {}

  @Get('serving')
  serving(): Promise<unknown> {
    const reply = this.servings.batchedRun('upper', 'served');
    arrived();
    return reply;
  }

  @Get('method')
  method(): Promise<string> {
    const reply = caller<SlowController>(this).batched('batched');
    arrived();
    return reply;
  }

  @Batched({ batchTimeout: A_DAY })
  batched(texts: string[]): string[] {
    return texts.map((text) => text.toUpperCase());
  }
}

describeOnPlatforms('Shutdown', (listen) => {
  it.each([
    ['serving', 'SERVED'],
    ['method', 'BATCHED'],
  ])('[9.3] runs what waits for others in the window of a %s, since none will come', async (path, body) => {
    const waiting = new Promise<void>((resolve) => (arrived = resolve));
    const site = await listen({ imports: [ServingModule.forRoot({ servings: [upper] })], controllers: [SlowController] });
    const reply = site.get(`/${path}`, { connection: 'close' });
    await waiting;

    await site.app.close();

    expect(await reply).toMatchObject({ status: 200, body });
  });
});

// #region imports
import { Module } from '@nestjs/common';
import { LoginGuard, ServingModule, ServingService } from 'nestjs-serving';
import { ServingBoardModule } from 'nestjs-serving/board';
// #endregion
import { expect, it } from '@jest/globals';
import { describeOnPlatforms } from '../../fixtures/partitions/platforms.js';

const digits = {
  name: 'digits',
  model: { useFactory: () => (rows: unknown[]) => rows },
};

process.env['BOARD_PASSWORD'] = 'secret';

// #region module
// The browser asks for this login.
const operators = new LoginGuard({ user: 'operator', password: process.env['BOARD_PASSWORD'] });

@Module({
  imports: [
    ServingModule.forRoot({ servings: [digits] }),
    ServingBoardModule.forRoot({
      path: 'admin/servings',
      guards: [operators],
      changes: { guards: [operators] }, // Without it, the board only shows.
    }),
  ],
})
export class AppModule {}
// #endregion

async function deploy(servings: ServingService): Promise<void> {
  // #region hold
  const serving = servings.get('digits');
  serving.drain(); // New calls fail with 503; rows that it has finish.
  serving.pause(); // Calls wait; no partition takes a batch.
  serving.resume(); // Ends both.
  await serving.version('july').promote(); // Or rollback().
  // #endregion
}

describeOnPlatforms("The manual's board", (listen) => {
  it('[20.2] [X1] It asks for a name and a password, and operators make changes', async () => {
    const site = await listen({ imports: [AppModule] });
    const authorization = `Basic ${btoa('operator:secret')}`;
    const change = { serving: 'digits', change: 'drain' };
    const header = { 'x-serving-board': '1', authorization };

    const page = await fetch(`${await site.app.getUrl()}/admin/servings`);
    expect(page.status).toBe(401);
    expect(page.headers.get('www-authenticate')).toMatch(/^Basic /);
    const wrong = { authorization: `Basic ${btoa('operator:other')}` };
    expect((await site.get('/admin/servings', wrong)).status).toBe(401);
    expect((await site.get('/admin/servings', { authorization })).status).toBe(200);
    const stranger = { 'x-serving-board': '1' };
    expect((await site.post('/admin/servings/changes', change, stranger)).status).toBe(401);
    expect((await site.post('/admin/servings/changes', change, header)).status).toBe(200);
    expect(site.app.get(ServingService).isReady).toBe(false);
    expect(await deploy(site.app.get(ServingService)).catch(String)).toContain('no version "july"');
    expect(site.app.get(ServingService).isReady).toBe(true);
  });
});

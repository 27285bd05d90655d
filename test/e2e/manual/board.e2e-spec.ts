// #region imports
import {
  type CanActivate,
  type ExecutionContext,
  Injectable,
  Module,
  UnauthorizedException,
} from '@nestjs/common';
import { ServingModule, ServingService } from 'nestjs-serving';
import { ServingBoardModule } from 'nestjs-serving/board';
// #endregion
import { expect, it } from '@jest/globals';
import { describeOnPlatforms } from '../../fixtures/partitions/platforms.js';

const digits = {
  name: 'digits',
  useFactory: () => (rows: unknown[]) => rows,
};

// #region guards
@Injectable()
export class AdminGuard implements CanActivate {
  canActivate(context: ExecutionContext): boolean {
    const { headers } = context.switchToHttp().getRequest();
    const [user, password] = atob(headers.authorization?.slice(6) ?? '').split(':');
    if (user !== 'admin' || password !== process.env['BOARD_PASSWORD']) {
      // The browser asks for name and password.
      throw new UnauthorizedException();
    }
    return true;
  }
}
// #endregion

@Injectable()
class OperatorGuard implements CanActivate {
  canActivate(context: ExecutionContext): boolean {
    return context.switchToHttp().getRequest().headers['x-operator'] === 'yes';
  }
}

// #region module
@Module({
  imports: [
    ServingModule.forRoot({ servings: [digits] }),
    ServingBoardModule.forRoot({
      path: 'admin/servings',
      guards: [AdminGuard],
      changes: { guards: [OperatorGuard] }, // Without it, the board only shows.
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
  it('[20.2] It asks for a name and a password, and operators make changes', async () => {
    process.env['BOARD_PASSWORD'] = 'secret';
    const site = await listen({ imports: [AppModule] });
    const authorization = `Basic ${btoa('admin:secret')}`;
    const change = { serving: 'digits', change: 'drain' };
    const header = { 'x-serving-board': '1', authorization };

    expect((await site.get('/admin/servings')).status).toBe(401);
    const wrong = { authorization: `Basic ${btoa('admin:other')}` };
    expect((await site.get('/admin/servings', wrong)).status).toBe(401);
    expect((await site.get('/admin/servings', { authorization })).status).toBe(200);
    expect((await site.post('/admin/servings/changes', change, header)).status).toBe(403);
    const operator = { ...header, 'x-operator': 'yes' };
    expect((await site.post('/admin/servings/changes', change, operator)).status).toBe(200);
    expect(site.app.get(ServingService).isReady).toBe(false);
    expect(await deploy(site.app.get(ServingService)).catch(String)).toContain('no version "july"');
    expect(site.app.get(ServingService).isReady).toBe(true);
  });
});

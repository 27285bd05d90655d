// #region spec
// src/digits.spec.ts
import { Test } from '@nestjs/testing';
import { ServingService } from 'nestjs-serving';
import { AppModule } from './app.module.js';

it('reads a four', async () => {
  const testing = await Test.createTestingModule({ imports: [AppModule] }).compile();
  const app = await testing.init();
  const four = ['', ' #  #', ' #  #', ' #####', '    #', '    #'];
  await expect(app.get(ServingService).batchedRun('digits', four)).resolves.toMatchObject({
    digit: 4,
  });
  await app.close();
});
// #endregion

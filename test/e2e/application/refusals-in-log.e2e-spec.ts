import { afterEach, describe, expect, it, jest } from '@jest/globals';
import { Controller, Get, Logger } from '@nestjs/common';
import { BatchFailedError, OverloadedError, ServingModule } from 'nestjs-serving';
import { RefusalLog } from '../../../lib/nest/serving-exception.filter.js';
import { recordWarnings } from '../../fixtures/recorded-warnings.js';
import { describeOnPlatforms } from '../../fixtures/partitions/platforms.js';

@Controller()
class FailingController {
  @Get('refused')
  refused(): never {
    throw new OverloadedError('Serving "m" is full', { retryAfter: 3 });
  }

  @Get('failed')
  failed(): never {
    throw new BatchFailedError('Serving "m": a batch of 1 rows failed');
  }
}

afterEach(() => {
  jest.restoreAllMocks();
  jest.useRealTimers();
});

describeOnPlatforms('The log of an application', (listen) => {
  const answersOf = async (options: { readonly logRefusals?: boolean }) => {
    const warnings = recordWarnings();
    const errors: unknown[] = [];
    jest.spyOn(Logger.prototype, 'error').mockImplementation((error) => void errors.push(error));
    const site = await listen({
      imports: [ServingModule.forRoot(options)],
      controllers: [FailingController],
    });
    const replies = await Promise.all(Array.from({ length: 100 }, () => site.get('/refused')));
    return { site, replies, warnings, errors };
  };

  it('[N5] has a few warnings without a stack for many refused calls, and an error for each fault', async () => {
    const { site, replies, warnings, errors } = await answersOf({});

    for (const { status, headers, body } of replies) {
      expect({ status, body }).toEqual({
        status: 503,
        body: { statusCode: 503, message: 'Service Unavailable' },
      });
      expect(headers.get('retry-after')).toBe('3');
    }
    expect(errors).toEqual([]);
    expect(warnings[0]).toBe('Serving "m" is full (SERVING_OVERLOADED)');
    expect(warnings.length).toBeLessThan(replies.length);

    expect((await site.get('/failed')).status).toBe(500);
    expect(errors).toEqual([expect.any(BatchFailedError)]);
  });

  it('[N5] has nothing for refused calls with logRefusals: false', async () => {
    const { warnings, errors } = await answersOf({ logRefusals: false });

    expect([...warnings, ...errors]).toEqual([]);
  });
});

describe('RefusalLog', () => {
  it('[N5] writes one line a second for each code, with the number of those without', () => {
    jest.useFakeTimers();
    const warnings = recordWarnings();
    const log = new RefusalLog();
    const refuse = (message: string): void => log.add(new OverloadedError(message));

    for (let i = 0; i < 30; i++) {
      refuse(`refused ${i}`);
      jest.advanceTimersByTime(100);
    }

    expect(warnings).toEqual([
      'refused 0 (SERVING_OVERLOADED)',
      'refused 10 (SERVING_OVERLOADED, after 9 others without a line)',
      'refused 20 (SERVING_OVERLOADED, after 9 others without a line)',
    ]);
  });
});

import { expect, it, jest } from '@jest/globals';
import { Logger } from '@nestjs/common';
import { VirtualTime } from 'nestjs-serving/testing';
import { of } from 'rxjs';
import { Reconnector } from '../../../../lib/extensions/distribution/transports/reconnector.js';

it('[11] A peer that is unreachable for long is dialled at intervals shorter than the 2 seconds that calls wait', async () => {
  const log = jest.spyOn(Logger.prototype, 'warn').mockReturnValue();
  const time = await VirtualTime.install();
  const dialledAt: number[] = [];
  const dial = () => {
    dialledAt.push(performance.now());
    return { opened: Promise.reject(new Error('refused')), failure: undefined, end: () => {} };
  };
  const dials = new Reconnector(of([{ host: 'model', port: 1 }]), 'web', dial, () => undefined);
  try {
    for (let second = 0; second < 60; second++) {
      await time.advance(1_000);
    }

    const pauses = dialledAt.slice(1).map((at, i) => at - dialledAt[i]!);
    expect(Math.max(...pauses)).toBeGreaterThan(1_000);
    expect(Math.max(...pauses)).toBeLessThan(2_000);
    expect(log).toHaveBeenCalledTimes(1);
  } finally {
    dials.stop();
    time.restore();
    log.mockRestore();
  }
});

it('[N16] A peer that starts within 10 seconds of this node is no warning, and one that does not has one', async () => {
  const log = jest.spyOn(Logger.prototype, 'warn').mockReturnValue();
  const time = await VirtualTime.install();
  const refused = Object.assign(new Error('connect ECONNREFUSED 10.0.0.2:1'), {
    code: 'ECONNREFUSED',
  });
  const dial = () => ({ opened: Promise.reject(refused), failure: undefined, end: () => {} });
  const dials = new Reconnector(of([{ host: 'model', port: 1 }]), 'web', dial, () => undefined);
  try {
    await time.advance(9_000);
    expect(log).not.toHaveBeenCalled();

    await time.advance(30_000);
    expect(log.mock.calls).toEqual([[expect.stringMatching(/no connection.*ECONNREFUSED/)]]);
  } finally {
    dials.stop();
    time.restore();
    log.mockRestore();
  }
});

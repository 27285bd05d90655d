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

it('[FV6] A peer that leads to this node is dialled again later, which the log says once, and joins when it leads elsewhere', async () => {
  const log = jest.spyOn(Logger.prototype, 'log').mockReturnValue();
  const time = await VirtualTime.install();
  const led: string[] = [];
  const links = new Map<string, Promise<void>>();
  const dial = () => {
    const address = led.length < 3 ? 'web' : 'other';
    led.push(address);
    if (address === 'other') {
      links.set(address, new Promise(() => {}));
    }
    return { opened: Promise.resolve({ address }), failure: undefined, end: () => {} };
  };
  const peers = of([{ host: '::1', port: 1 }]);
  const dials = new Reconnector(peers, 'web', dial, (address) => links.get(address));
  try {
    await time.advance(1_000);
    expect(led).toEqual(['web']);
    await time.advance(60_000);

    expect(led).toEqual(['web', 'web', 'web', 'other']);
    expect(log.mock.calls).toEqual([[expect.stringMatching(/peer \[::1\]:1 is this node itself/)]]);
  } finally {
    dials.stop();
    time.restore();
    log.mockRestore();
  }
});

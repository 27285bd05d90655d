import { type ConfigType, registerAs } from '@nestjs/config';
import { createHash } from 'node:crypto';

/** The settings of the application, from the environment. A wrong one fails the boot. */
export const settings = registerAs('settings', () => ({
  tenants: tenantsOf(process.env.API_KEYS),
  /** Cores of the container, less one for the event loop. */
  modelThreads: numberOf('MODEL_THREADS', 1),
  queueMaxRows: numberOf('QUEUE_MAX_ROWS', 500),
  /** Milliseconds. */
  callTimeout: numberOf('CALL_TIMEOUT', 5000),
  /** Milliseconds; less than the grace period of the platform. */
  shutdownTimeout: numberOf('SHUTDOWN_TIMEOUT', 20_000),
}));

export type Settings = ConfigType<typeof settings>;

/** The tenant by digest of its API key, from `tenant:key,tenant:key`. */
export function tenantsOf(keys = ''): ReadonlyMap<string, string> {
  const entries = keys.split(',').map((entry) => {
    const [, tenant, key] = /^\s*([\w-]+):(\S{16,})\s*$/.exec(entry) ?? [];
    if (!tenant || !key) {
      throw new Error('Set API_KEYS to tenant:key,tenant:key, with keys of 16 characters or more');
    }
    return [digestOf(key), tenant] as const;
  });
  return new Map(entries);
}

/** The time of a lookup by digest says nothing about the characters of a key. */
export function digestOf(key: string): string {
  return createHash('sha256').update(key).digest('base64');
}

function numberOf(name: string, otherwise: number): number {
  const text = process.env[name] ?? String(otherwise);
  if (!/^[1-9]\d{0,8}$/.test(text)) {
    throw new Error(`Set ${name} to a whole number above 0, not "${text}"`);
  }
  return Number(text);
}

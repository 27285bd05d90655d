import { type ConfigType, registerAs } from '@nestjs/config';
import { createHash } from 'node:crypto';
import { fetchedVersion } from './model-file.js';

/** A name that is a file's name too, of no other folder. */
export const versionPattern = /^\w[\w.-]*$/;

/** A version that answers a share of the tenants. */
export interface Canary {
  readonly version: string;
  readonly percent: number;
}

/** The settings of the application, from the environment. A wrong one fails the boot. */
export const settings = registerAs('settings', () => ({
  tenants: tenantsOf(process.env.API_KEYS),
  modelVersion: process.env.MODEL_VERSION ?? fetchedVersion,
  canary: canaryOf(process.env.CANARY),
  grpcPort: numberOf('GRPC_PORT', 8001),
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

/** `july:10`: the version july answers 10 % of the tenants. */
export function canaryOf(canary = ''): Canary | undefined {
  const [, version = '', percent] = /^(.+):(\d\d?|100)$/.exec(canary) ?? [];
  if (canary !== '' && !versionPattern.test(version)) {
    throw new Error(`Set CANARY to version:percent, such as july:10, not "${canary}"`);
  }
  return canary === '' ? undefined : { version, percent: Number(percent) };
}

function numberOf(name: string, otherwise: number): number {
  const text = process.env[name] ?? String(otherwise);
  if (!/^[1-9]\d{0,8}$/.test(text)) {
    throw new Error(`Set ${name} to a whole number above 0, not "${text}"`);
  }
  return Number(text);
}

import { Redis } from 'ioredis';

export const redisUrl = process.env.REDIS_URL ?? 'redis://localhost:6379';

/** The name of the queue. */
export const chunkQueue = 'chunks';

/** Ends the process with instructions if no Redis server answers. */
export async function requireRedis(): Promise<void> {
  const redis = new Redis(redisUrl, { lazyConnect: true, retryStrategy: () => null });
  // `connect` rejects without the reason, which is in the event.
  let reason = '';
  redis.on('error', ({ message }: Error) => (reason = message));
  try {
    await redis.connect();
  } catch {
    console.error(
      `No Redis server answers at ${new URL(redisUrl).host}: ${reason}\n` +
        'Start one with `redis-server --appendonly yes` (apt-get install redis-server), or with\n' +
        '`docker run -p 6379:6379 redis:7 --appendonly yes`. REDIS_URL names another address.',
    );
    process.exit(1);
  } finally {
    redis.disconnect();
  }
}

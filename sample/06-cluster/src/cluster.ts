import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

/** The three processes of this sample. */
export class Cluster {
  private constructor(
    private readonly nodes: ReadonlyMap<string, ChildProcess>,
    /** Where the web node listens. */
    readonly url: string,
    readonly transport: string,
  ) {}

  static async start(): Promise<Cluster> {
    const { values } = parseArgs({ options: { nats: { type: 'string' } } });
    const ports = [await freePort(), await freePort()];
    const shared =
      values.nats === undefined ? { PEERS: ports.join(',') } : { NATS_URL: values.nats };
    const [one, two, web] = await Promise.all([
      started('model-node', { ...shared, NODE_NAME: 'one', LISTEN: `${ports[0]}` }),
      started('model-node', { ...shared, NODE_NAME: 'two', LISTEN: `${ports[1]}` }),
      started('web-node', { ...shared, NODE_NAME: 'web', PORT: process.env['PORT'] ?? '0' }),
    ]);
    const nodes = new Map([
      ['one', one.process],
      ['two', two.process],
      ['web', web.process],
    ]);
    return new Cluster(nodes, web.url!, values.nats === undefined ? 'TCP' : 'NATS');
  }

  /** As a power cut would. */
  kill(node: string): void {
    this.nodes.get(node)!.kill('SIGKILL');
  }

  async stop(): Promise<void> {
    const running = [...this.nodes.values()].filter(
      ({ exitCode, signalCode }) => exitCode === null && signalCode === null,
    );
    await Promise.all(
      running.map(async (node) => {
        node.kill('SIGTERM');
        await once(node, 'exit');
      }),
    );
  }
}

async function started(
  script: string,
  env: Record<string, string | undefined>,
): Promise<{ process: ChildProcess; url?: string }> {
  const path = fileURLToPath(new URL(`./${script}.js`, import.meta.url));
  const child = fork(path, { env: { ...process.env, ...env } });
  const [message] = await Promise.race([
    once(child, 'message'),
    once(child, 'exit').then(([code]) =>
      Promise.reject(new Error(`${script} ended with code ${code}`)),
    ),
  ]);
  return { process: child, ...(message as { url?: string }) };
}

/** A free port. */
async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  server.close();
  await once(server, 'close');
  return typeof address === 'object' && address ? address.port : 0;
}

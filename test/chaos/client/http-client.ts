import { Agent, type IncomingHttpHeaders, request } from 'node:http';

export interface HttpReply {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly body: string;
}

/** A client that keeps its connections. */
export class HttpClient {
  private readonly agent: Agent;

  constructor(
    private readonly url: string,
    connections: number,
  ) {
    this.agent = new Agent({ keepAlive: true, maxSockets: connections });
  }

  /** Rejects when no whole answer comes; the signal closes the connection. */
  send(
    method: 'GET' | 'POST',
    path: string,
    content?: object,
    signal?: AbortSignal,
  ): Promise<HttpReply> {
    const headers = content ? { 'content-type': 'application/json' } : {};
    return new Promise((resolve, reject) => {
      const options = { method, headers, agent: this.agent, ...(signal && { signal }) };
      const sent = request(new URL(path, this.url), options, (response) => {
        let body = '';
        response
          .setEncoding('utf8')
          .on('data', (text: string) => (body += text))
          .on('end', () =>
            resolve({ status: response.statusCode!, headers: response.headers, body }),
          )
          .on('error', reject);
      });
      sent.on('error', reject).end(content && JSON.stringify(content));
    });
  }

  close(): void {
    this.agent.destroy();
  }
}

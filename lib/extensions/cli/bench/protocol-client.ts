import { Agent, type IncomingMessage, request } from 'node:http';
import { Agent as TlsAgent, request as tlsRequest } from 'node:https';
import type { Tensor } from 'onnxruntime-common';
import { ServingError } from '../../../index.js';
import { messageOf } from '../../../doors/text.js';
import { swapOnBigEndian } from '../../../encoding/element-types.js';
import { datatypeOf, typeOfDatatype } from '../../../encoding/json-tensor.js';
import type { SampledInput } from '../load/sample-rows.js';

class AnswerError extends Error {
  constructor(
    message: string,
    readonly statusCode: number,
  ) {
    super(message);
  }
}

export interface ModelAddress {
  /** Address with the route prefix. */
  readonly url: string;
  readonly model: string;
  readonly version?: string | undefined;
  readonly headers: Readonly<Record<string, string>>;
  readonly connections: number;
}

interface Metadata {
  readonly inputs?: readonly {
    readonly name: string;
    readonly datatype: string;
    readonly shape: readonly number[];
  }[];
}

/** Sends binary tensors over HTTP; connections stay open. */
export class ProtocolClient {
  private readonly agent: Agent;
  private readonly path: string;
  private readonly url: URL;

  /** @throws ServingError for an invalid address */
  constructor(private readonly address: ModelAddress) {
    this.url = urlOf(address.url);
    const options = { keepAlive: true, maxSockets: address.connections };
    this.agent = this.url.protocol === 'https:' ? new TlsAgent(options) : new Agent(options);
    const version =
      address.version === undefined ? '' : `/versions/${encodeURIComponent(address.version)}`;
    const prefix = this.url.pathname.replace(/\/$/, '');
    this.path = `${prefix}/v2/models/${encodeURIComponent(address.model)}${version}`;
  }

  /** A first axis of any size counts rows. */
  async inputs(): Promise<readonly SampledInput[]> {
    const { url, model } = this.address;
    try {
      const { inputs = [] } = JSON.parse((await this.ask('GET', '')).toString()) as Metadata;
      return inputs.map(({ name, datatype, shape }) => ({
        name,
        type: typeOfDatatype(datatype) ?? 'float32',
        shape: shape.map((size) => (size < 0 ? null : size)),
        batchAxis: shape[0] === -1 ? 0 : null,
      }));
    } catch (cause) {
      throw new ServingError(
        `${url} has no model "${model}" by the Open Inference Protocol: ${messageOf(cause)}`,
        { cause },
      );
    }
  }

  call(tensors: Readonly<Record<string, Tensor>>): () => Promise<unknown> {
    const raw = Object.values(tensors).map((tensor) => bytesOf(tensor));
    const inputs = Object.entries(tensors).map(([name, { type, dims }], i) => ({
      name,
      datatype: datatypeOf(type),
      shape: dims,
      parameters: { binary_data_size: raw[i]!.length },
    }));
    const head = Buffer.from(JSON.stringify({ inputs, parameters: { binary_data_output: true } }));
    const body = Buffer.concat([head, ...raw]);
    const headers = {
      'Content-Type': 'application/octet-stream',
      'Inference-Header-Content-Length': String(head.length),
    };
    return () => this.ask('POST', '/infer', body, headers);
  }

  close(): void {
    this.agent.destroy();
  }

  private ask(
    method: string,
    path: string,
    body?: Buffer,
    headers: Readonly<Record<string, string>> = {},
  ): Promise<Buffer> {
    const { agent, url } = this;
    const send = url.protocol === 'https:' ? tlsRequest : request;
    return new Promise((resolve, reject) => {
      const outgoing = send(
        url,
        {
          agent,
          method,
          path: this.path + path,
          headers: {
            ...headers,
            ...this.address.headers,
            ...(body && { 'Content-Length': body.length }),
          },
        },
        (response) => readBody(response, resolve, reject),
      );
      outgoing.on('error', reject).end(body);
    });
  }
}

function readBody(
  response: IncomingMessage,
  resolve: (body: Buffer) => void,
  reject: (reason: unknown) => void,
): void {
  const parts: Buffer[] = [];
  response
    .on('data', (part: Buffer) => parts.push(part))
    .on('error', reject)
    .on('end', () => {
      const { statusCode = 0 } = response;
      const body = Buffer.concat(parts);
      if (statusCode === 200) {
        resolve(body);
      } else {
        reject(
          new AnswerError(`status ${statusCode}: ${body.toString('utf8', 0, 300)}`, statusCode),
        );
      }
    });
}

function urlOf(text: string): URL {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (url && url.search !== '') {
    throw new ServingError(
      `${text} has a query, which no call would have; leave it out, and give a key as --header`,
    );
  }
  if (url?.protocol === 'http:' || url?.protocol === 'https:') {
    return url;
  }
  throw new ServingError(`${text} is no address; give one such as http://localhost:3000`);
}

/** Little-endian, strings after their lengths. */
function bytesOf({ data }: Tensor): Buffer {
  if (!Array.isArray(data)) {
    const { buffer, BYTES_PER_ELEMENT } = data.slice();
    const bytes = Buffer.from(buffer);
    swapOnBigEndian(bytes, BYTES_PER_ELEMENT);
    return bytes;
  }
  const parts = data.flatMap((element: string) => {
    const text = Buffer.from(element);
    const length = Buffer.alloc(4);
    length.writeUInt32LE(text.length);
    return [length, text];
  });
  return Buffer.concat(parts);
}

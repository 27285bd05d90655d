import { randomUUID } from 'node:crypto';
import type { Socket } from 'node:net';
import type { ClientTCP, ServerTCP, TcpContext } from '@nestjs/microservices';
import { firstValueFrom } from 'rxjs';
import { InvalidInputError } from '../../errors.js';
import { show } from '../../show.js';
import type { Address } from '../transport.js';
import { VERSION } from '../wire/prelude.js';
import { escapeName, isAddress } from './names.js';
import { plainAnswer } from './plain-answer.js';
import type { TcpLink } from './tcp-link.js';
import type { TcpLinks } from './tcp-links.js';
import { isProof, proofOf } from './tcp-proof.js';

/** What a node says first. */
interface Introduction {
  readonly address: Address;
  readonly version: number;
  readonly nonce: string;
  readonly proof?: string | undefined;
}

/**
 * How a connection becomes a link. Who has dialled asks who the other is, and then proposes the link, both with messages of Nest's own. With a secret, each
 * proves that it knows it, by what the other has made up for this connection.
 */
export class TcpOpening {
  private readonly whoPattern: string;
  private readonly linkPattern: string;
  /** What both ends have made up, of connections that are no link yet. */
  private readonly nonces = new WeakMap<Socket, readonly [theirs: string, ours: string]>();

  constructor(
    private readonly own: Address,
    private readonly namespace: string,
    private readonly secret: string | undefined,
    private readonly links: TcpLinks,
  ) {
    this.whoPattern = `sv.${escapeName(namespace)}.who`;
    this.linkPattern = `sv.${escapeName(namespace)}.link`;
  }

  /** Answers those who dial this node. */
  listen(server: ServerTCP): void {
    const add = (pattern: string, answer: (data: unknown, socket: Socket) => unknown): void =>
      server.addHandler(pattern, (data: unknown, context: TcpContext) =>
        plainAnswer(async () => answer(data, context.getSocketRef().netSocket))(data),
      );
    add(this.whoPattern, (data, socket) => this.introduce(data, socket));
    add(this.linkPattern, (data, socket) => this.accept(data, socket));
  }

  /** Makes a connection that has been dialled a link; gives the address of the other end, and the link, if it is to be one. */
  async dial(client: ClientTCP): Promise<{ readonly address: Address; readonly link?: TcpLink | undefined }> {
    const ours = randomUUID();
    const answer: unknown = await firstValueFrom(client.send<unknown>(this.whoPattern, { nonce: ours }));
    const { address, version, nonce, proof } = introductionOf(answer);
    if (version !== VERSION) {
      throw new Error(`It speaks version ${version}; only version ${VERSION} is understood here`);
    }
    if (!isProof(proof, this.secret, 'who', this.namespace, ours, nonce, address)) {
      throw new Error('It has another secret, or none');
    }
    if (address === this.own) {
      return { address };
    }
    const socket: Socket = client.unwrap();
    const ask = async (): Promise<boolean> => {
      const proposal = { address: this.own, proof: proofOf(this.secret, 'link', this.namespace, ours, nonce, this.own) };
      const isAccepted: unknown = await firstValueFrom(client.send<unknown>(this.linkPattern, proposal));
      return isAccepted === true;
    };
    return { address, link: await this.links.propose(address, socket, ask) };
  }

  private introduce(data: unknown, socket: Socket): Introduction {
    const { nonce: theirs } = partsOf(data);
    if (typeof theirs !== 'string' || theirs.length > 128) {
      throw new InvalidInputError(`A nonce of at most 128 characters is needed, not ${show(theirs)}`);
    }
    const ours = randomUUID();
    this.nonces.set(socket, [theirs, ours]);
    const proof = proofOf(this.secret, 'who', this.namespace, theirs, ours, this.own);
    return { address: this.own, version: VERSION, nonce: ours, proof };
  }

  private accept(data: unknown, socket: Socket): boolean {
    const { address, proof } = partsOf(data);
    const nonces = this.nonces.get(socket);
    this.nonces.delete(socket);
    if (!nonces || !isAddress(address)) {
      throw new InvalidInputError(`A link is for a node that has asked who is here, and has an address, not ${show(address)}`);
    }
    if (!isProof(proof, this.secret, 'link', this.namespace, ...nonces, address)) {
      throw new InvalidInputError('The secret of this node is another one');
    }
    return address !== this.own && this.links.accept(address, socket);
  }
}

function introductionOf(answer: unknown): Introduction {
  const { address, version, nonce, proof } = partsOf(answer);
  if (!isAddress(address) || typeof version !== 'number' || typeof nonce !== 'string' || !isOptionalText(proof)) {
    throw new Error(`It does not say who it is, but ${show(answer)}`);
  }
  return { address, version, nonce, proof };
}

function isOptionalText(value: unknown): value is string | undefined {
  return value === undefined || typeof value === 'string';
}

function partsOf(data: unknown): Readonly<Record<string, unknown>> {
  return typeof data === 'object' && data !== null ? { ...data } : {};
}

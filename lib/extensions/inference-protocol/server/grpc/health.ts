import { HttpException, HttpStatus } from '@nestjs/common';
import { fileURLToPath } from 'node:url';
import type {
  sendUnaryData,
  ServerUnaryCall,
  ServerWritableStream,
  ServiceDefinition,
  UntypedServiceImplementation,
} from '@grpc/grpc-js';
import { type Observable, share } from 'rxjs';
import { onAbort } from '../../../../doors/calls.js';
import type { GrpcPackages } from '../../wire/grpc-service.js';
import { errorAnswer, statusOf } from '../error-answers.js';
import type { InferenceServer } from '../inference-server.js';

/** Open calls of `Watch` per connection. */
const MOST_WATCHES = 100;

/** Characters of an unknown service's name that a call of `Watch` may keep in memory. */
const LONGEST_NAME = 1000;

interface Asked {
  readonly service: string;
}

interface Answered {
  readonly status: 'SERVING' | 'NOT_SERVING' | 'SERVICE_UNKNOWN';
}

/** Follows https://github.com/grpc/grpc/blob/master/doc/health-checking.md */
export class HealthCalls {
  /** Open calls of `Watch` by connection. */
  private readonly watches = new Map<string, number>();
  private readonly changes$: Observable<unknown>;

  constructor(
    private readonly inference: InferenceServer,
    private readonly stop: AbortSignal,
    private readonly grpc: GrpcPackages['grpc'],
  ) {
    this.changes$ = inference.changes$.pipe(share());
  }

  get handlers(): UntypedServiceImplementation {
    return {
      Check: ({ request }: ServerUnaryCall<Asked, Answered>, reply: sendUnaryData<Answered>) => {
        try {
          reply(null, { status: this.statusOf(request.service) });
        } catch (error) {
          reply(this.failure(error));
        }
      },
      Watch: (call: ServerWritableStream<Asked, Answered>) => {
        try {
          this.watch(call);
        } catch (error) {
          call.emit('error', this.failure(error));
        }
      },
    };
  }

  /** A slow client gets the latest status alone. */
  private watch(call: ServerWritableStream<Asked, Answered>): void {
    const statusNow = this.statusesOf(call.request.service);
    this.count(call);
    let sent: Answered['status'] | undefined;
    let isSending = false;
    const send = (): void => {
      const status = statusNow();
      if (!isSending && status !== sent) {
        sent = status;
        isSending = true;
        call.write({ status }, sendNow);
      }
    };
    const sendNow = (): void => {
      isSending = false;
      send();
    };
    const changes = this.changes$.subscribe(send);
    send();
    const forget = onAbort(this.stop, () => {
      sendNow();
      call.end();
    });
    call.once('close', () => {
      changes.unsubscribe();
      forget();
    });
  }

  /** @throws HttpException for a connection with too many open calls of `Watch` */
  private count(call: ServerWritableStream<Asked, Answered>): void {
    const { watches } = this;
    const connection = call.getPeer();
    const open = watches.get(connection) ?? 0;
    if (open >= MOST_WATCHES) {
      throw new HttpException(
        `A connection may have ${MOST_WATCHES} open calls of Watch; end one of them before the next`,
        HttpStatus.TOO_MANY_REQUESTS,
      );
    }
    watches.set(connection, open + 1);
    call.once('close', () => {
      const left = watches.get(connection)! - 1;
      if (left > 0) {
        watches.set(connection, left);
      } else {
        watches.delete(connection);
      }
    });
  }

  /**
   * Models don't come later, so an unknown one stays so.
   *
   * @throws UnknownServingError for an unknown service with a long name
   */
  private statusesOf(service: string): () => Answered['status'] {
    try {
      this.statusOf(service);
      return () => this.statusOf(service);
    } catch (error) {
      if (service.length > LONGEST_NAME) {
        throw error;
      }
      return () => 'SERVICE_UNKNOWN';
    }
  }

  /** @throws UnknownServingError */
  private statusOf(service: string): Answered['status'] {
    const { inference } = this;
    const isReady = service === '' ? inference.isReady : inference.isModelReady(service);
    return isReady ? 'SERVING' : 'NOT_SERVING';
  }

  private failure(error: unknown) {
    return statusOf(errorAnswer(error), new this.grpc.Metadata());
  }
}

export async function loadHealth({ load }: GrpcPackages['loader']): Promise<ServiceDefinition> {
  const file = fileURLToPath(new URL('./health.proto', import.meta.url));
  const definition = await load(file, { keepCase: true, enums: String, defaults: true });
  return definition['grpc.health.v1.Health'] as ServiceDefinition;
}

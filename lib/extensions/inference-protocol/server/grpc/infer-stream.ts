import { Logger } from '@nestjs/common';
import type { ServerDuplexStream } from '@grpc/grpc-js';
import { onAbort } from '../../../../doors/calls.js';
import type { GrpcInferRequest } from '../../wire/grpc-service.js';
import { errorAnswer } from '../error-answers.js';
import type { InferenceCaller, StreamedReply } from '../inference-request.js';
import type { InferenceServer } from '../inference-server.js';
import type { StreamCall, StreamMessage } from './protocol-calls.js';
import { readInferRequest, writeInferReply } from './messages.js';

/** Concurrent requests per stream before we pause reading. */
const MOST_OPEN = 64;

/**
 * Single replies leave in request order, decoupled models' replies as they come. A slow reader
 * delays its own requests.
 *
 * @throws a request's first error if `endsOnError`
 */
export async function answerStream(
  server: InferenceServer,
  call: StreamCall,
  caller: InferenceCaller,
  stop: AbortSignal,
  endsOnError: boolean,
): Promise<void> {
  const open = new Set<Promise<void>>();
  const writer = new StreamWriter(call);
  let failure: { readonly error: unknown } | undefined;
  let before = Promise.resolve();
  await read(call, stop, (message, endReading) => {
    const turn = isDecoupled(server, message) ? Promise.resolve() : before;
    const failed = async (error: unknown): Promise<void> => {
      await turn;
      if (endsOnError) {
        failure ??= { error };
        endReading();
      } else {
        await writer.write(errorMessage(message, error));
      }
    };
    const answered = answer(server, message, caller, writer, turn)
      .catch(failed)
      .finally(() => {
        open.delete(answered);
        call.resume();
      });
    before = turn === before ? answered : before;
    open.add(answered);
    if (open.size >= MOST_OPEN) {
      call.pause();
    }
  });
  await Promise.all(open);
  if (failure) {
    throw failure.error;
  }
}

/** Resolves when the stream, its client, or the server's shutdown ends it. */
export async function read<Message, Reply>(
  call: ServerDuplexStream<Message, Reply>,
  stop: AbortSignal,
  onRequest: (message: Message, endReading: () => void) => void,
): Promise<void> {
  let end!: () => void;
  const ended = new Promise<void>((resolve) => (end = resolve));
  const forget = onAbort(stop, end);
  call.on('data', (message: Message) => onRequest(message, end));
  call.once('end', end).once('cancelled', end).once('close', end);
  if (call.destroyed) {
    end();
  }
  await ended;
  forget();
  call.removeAllListeners('data');
}

async function answer(
  server: InferenceServer,
  message: GrpcInferRequest,
  caller: InferenceCaller,
  writer: StreamWriter,
  turn: Promise<void>,
): Promise<void> {
  const request = readInferRequest(message, server.options);
  const wantsEnd = request.parameters.get('triton_enable_empty_final_response') === true;
  for await (const reply of server.stream(request, caller)) {
    await turn;
    if (reply.outputs.size > 0 || wantsEnd) {
      await writer.write(replyMessage(reply));
    }
    if (writer.hasEnded) {
      return;
    }
  }
}

/** An unknown model's answer reports the error. */
function isDecoupled(server: InferenceServer, { model_name, model_version }: GrpcInferRequest) {
  try {
    return server.isDecoupled(model_name, model_version);
  } catch {
    return false;
  }
}

function replyMessage(reply: StreamedReply): StreamMessage {
  const parameters = { triton_final_response: { bool_param: reply.isFinal } };
  return { error_message: '', infer_response: writeInferReply(reply, parameters) };
}

const logger = new Logger('InferenceProtocol');

function errorMessage({ id, model_name, model_version }: GrpcInferRequest, error: unknown) {
  const { message, isFault } = errorAnswer(error);
  if (isFault) {
    logger.error(error);
  }
  return {
    error_message: message,
    infer_response: { id: id ?? '', model_name, model_version: model_version ?? '' },
  };
}

class StreamWriter {
  private room: Promise<void> | undefined;
  private goOn: (() => void) | undefined;

  constructor(private readonly call: StreamCall) {
    const goOn = (): void => this.goOn?.();
    call.on('drain', goOn).once('cancelled', goOn).once('close', goOn);
  }

  get hasEnded(): boolean {
    return this.call.cancelled || this.call.destroyed;
  }

  async write(message: StreamMessage): Promise<void> {
    while (this.room && !this.hasEnded) {
      await this.room;
    }
    if (!this.hasEnded && !this.call.write(message)) {
      this.room = new Promise((resolve) => {
        this.goOn = () => {
          this.room = undefined;
          resolve();
        };
      });
    }
    await this.room;
  }
}

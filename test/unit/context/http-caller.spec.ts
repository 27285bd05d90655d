import { EventEmitter } from 'node:events';
import { describe, expect, it } from '@jest/globals';
import type { ExecutionContext } from '@nestjs/common';
import { HttpCaller } from '../../../lib/context/http-caller.js';

/** A response and the connection of its request, with the members that a caller uses. */
function exchange(response: { writableEnded: boolean; writableFinished: boolean }): {
  caller: HttpCaller;
  connection: EventEmitter;
  finish: () => void;
} {
  const connection = Object.assign(new EventEmitter(), { destroyed: false });
  const own = Object.assign(new EventEmitter(), response);
  const http = { getResponse: () => own, getRequest: () => ({ socket: connection }) };
  const context = { switchToHttp: () => http } as unknown as ExecutionContext;
  return { caller: new HttpCaller(context), connection, finish: () => own.emit('finish') };
}

describe('The signal of an HTTP request', () => {
  it('[L1] A signal requested after the response has finished adds no listener to the connection', () => {
    const { caller, connection } = exchange({ writableEnded: true, writableFinished: true });

    expect(caller.signal.aborted).toBe(false);
    expect(connection.listenerCount('close')).toBe(0);
    connection.emit('close');
    expect(caller.signal.aborted).toBe(false);
  });

  it('[L1] A signal requested before the response has finished listens until then', () => {
    const { caller, connection, finish } = exchange({
      writableEnded: true,
      writableFinished: false,
    });

    expect(caller.signal.aborted).toBe(false);
    expect(connection.listenerCount('close')).toBe(1);
    finish();
    expect(connection.listenerCount('close')).toBe(0);
  });
});

import { EventEmitter } from 'node:events';
import { describe, expect, it } from '@jest/globals';
import { HttpCaller, type HttpExchange } from '../../../lib/nest/http-caller.js';

interface Response {
  writableEnded: boolean;
  writableFinished: boolean;
}

const connect = (): EventEmitter & { destroyed: boolean } =>
  Object.assign(new EventEmitter(), { destroyed: false });

/** The caller of a request on the connection, with the members of a response that it uses. */
function callerOn(connection: EventEmitter, response: Response): HttpCaller {
  const exchange = { request: { socket: connection }, response };
  return new HttpCaller(exchange as unknown as HttpExchange);
}

const open = (): Response => ({ writableEnded: false, writableFinished: false });

describe('The caller of an HTTP request', () => {
  it('[L1] A signal requested after the response has finished adds no listener to the connection', () => {
    const connection = connect();
    const caller = callerOn(connection, { writableEnded: true, writableFinished: true });

    expect(caller.signal.aborted).toBe(false);
    expect(connection.listenerCount('close')).toBe(0);
    connection.emit('close');
    expect(caller.signal.aborted).toBe(false);
  });

  it('[L1] The requests of a connection share one listener, and those that were answered do not abort', () => {
    const connection = connect();
    const responses = Array.from({ length: 20 }, open);
    const callers = responses.map((response) => callerOn(connection, response));
    const signals = callers.map((caller) => caller.signal);
    const [answered, others] = [responses.slice(0, 19), signals.slice(0, 19)];

    answered.forEach((response) => (response.writableEnded = true));
    expect(connection.listenerCount('close')).toBe(1);
    connection.destroyed = true;
    connection.emit('close');

    expect(others.some(({ aborted }) => aborted)).toBe(false);
    expect(signals[19]!.reason).toMatchObject({ code: 'SERVING_CANCELLED' });
    expect(callers[19]!.reason).toBe(signals[19]!.reason);
  });

  it('[7.3] Callbacks are called once each, unless they were removed', () => {
    const connection = connect();
    const caller = callerOn(connection, open());
    const called: string[] = [];
    const stop = caller.onAbort(() => called.push('removed'));
    const twice = (): unknown => called.push('twice');
    caller.onAbort(twice);
    caller.onAbort(twice);

    stop();
    connection.destroyed = true;
    connection.emit('close');

    expect(called).toEqual(['twice', 'twice']);
    expect(() => caller.throwIfAborted()).toThrow(caller.reason);
  });

  it('[7.3] The signal of a client that has left before is aborted', () => {
    const connection = Object.assign(connect(), { destroyed: true });

    expect(callerOn(connection, open()).signal.aborted).toBe(true);
  });
});

import { describe, expect, it } from '@jest/globals';
import { type ExecutionContext, UnauthorizedException } from '@nestjs/common';
import { ExecutionContextHost } from '@nestjs/core/helpers/execution-context-host.js';
import { ApiKeyGuard, InvalidServingError, LoginGuard } from 'nestjs-serving';

type Headers = Readonly<Record<string, string>>;

/** The context of an HTTP request with these headers, and the headers of its answer. */
function http(headers: Headers): { context: ExecutionContext; answer: Record<string, string> } {
  const answer: Record<string, string> = {};
  const header = (name: string, value: string) => (answer[name] = value);
  const context = new ExecutionContextHost([{ headers }, { header }]);
  context.setType('http');
  return { context, answer };
}

/** The context of a message, with the second argument that its transport gives. */
function rpc(transport: unknown): ExecutionContext {
  const context = new ExecutionContextHost([{}, transport]);
  context.setType('rpc');
  return context;
}

const grpc = (metadata: Headers) =>
  rpc({ get: (name: string) => (name in metadata ? [metadata[name]] : []) });

const login = (text: string): string => `Basic ${Buffer.from(text).toString('base64')}`;

describe('ApiKeyGuard', () => {
  it.each([
    ['undefined', undefined, 'a key is missing'],
    ['null', null as never, 'a key is missing'],
    ['an empty key', '', 'a key is empty'],
    ['spaces', '  ', 'a key is empty'],
    ['one missing key of two', ['a', undefined], 'a key is missing'],
    ['no keys', [], 'has no keys'],
    ['a line break at the end', 'secret\n', 'a key starts or ends with white space'],
  ])('[X1] is not made of %s', (_, keys, message) => {
    expect(() => new ApiKeyGuard(keys)).toThrow(InvalidServingError);
    expect(() => new ApiKeyGuard(keys)).toThrow(message);
  });

  it('[X1] never shows a key in its errors', () => {
    expect(() => new ApiKeyGuard('secret\n')).toThrow(expect.not.stringContaining('secret'));
  });

  const guard = new ApiKeyGuard(['old', 'new']);

  it.each<[string, ExecutionContext]>([
    ['the header x-api-key', http({ 'x-api-key': 'old' }).context],
    ['another of its keys', http({ 'x-api-key': 'new' }).context],
    ['a bearer token', http({ authorization: 'bearer new' }).context],
    ['the metadata of gRPC', grpc({ 'x-api-key': 'new' })],
    ['a bearer token in the metadata of gRPC', grpc({ authorization: 'Bearer old' })],
  ])('[X1] admits a call with a key in %s', (_, context) => {
    expect(guard.canActivate(context)).toBe(true);
  });

  const strange = new ExecutionContextHost([{ headers: { 'x-api-key': 'old' } }]);
  strange.setType('ws');
  it.each<[string, ExecutionContext]>([
    ['no header', http({}).context],
    ['another key', http({ 'x-api-key': 'other' }).context],
    ['an empty key', http({ 'x-api-key': '' }).context],
    ['the beginning of a key', http({ 'x-api-key': 'ol' }).context],
    ['another scheme', http({ authorization: 'Basic old' }).context],
    ['no metadata', grpc({})],
    ['no transport with metadata', rpc(undefined)],
    ['a context without headers', strange],
  ])('[X1] refuses a call with %s', (_, context) => {
    expect(() => guard.canActivate(context)).toThrow(UnauthorizedException);
  });
});

describe('LoginGuard', () => {
  it.each([
    ['no options', undefined as never, 'the password is missing'],
    ['a missing password', { password: undefined }, 'the password is missing'],
    ['an empty password', { password: '' }, 'the password is empty'],
    ['a line break', { password: 'secret\r\n' }, 'the password starts or ends with white space'],
    ['an empty user', { user: '', password: 'secret' }, 'the user "" is empty or has a colon'],
    ['a colon in the user', { user: 'a:b', password: 'secret' }, 'the user "a:b"'],
  ])('[X1] is not made with %s', (_, options, message) => {
    expect(() => new LoginGuard(options)).toThrow(InvalidServingError);
    expect(() => new LoginGuard(options)).toThrow(message);
  });

  const guard = new LoginGuard({ password: 'pass:wörd' });

  it('[X1] admits the user with the password', () => {
    const { context, answer } = http({ authorization: login('admin:pass:wörd') });

    expect(guard.canActivate(context)).toBe(true);
    expect(answer).toEqual({});
  });

  it.each([
    ['no header', {}],
    ['another password', { authorization: login('admin:other') }],
    ['another user', { authorization: login('root:pass:wörd') }],
    ['no colon', { authorization: login('admin') }],
    ['no credentials', { authorization: 'Basic' }],
    ['another scheme', { authorization: login('admin:pass:wörd').replace('Basic', 'Bearer') }],
  ])('[X1] refuses a request with %s, and has the browser ask', (_, headers: Headers) => {
    const { context, answer } = http(headers);

    expect(() => guard.canActivate(context)).toThrow(UnauthorizedException);
    expect(answer).toEqual({ 'WWW-Authenticate': 'Basic realm="Servings", charset="UTF-8"' });
  });
});

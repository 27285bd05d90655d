import { describe, expect, it } from '@jest/globals';
import {
  ForbiddenException,
  NotImplementedException,
  PayloadTooLargeException,
  UnauthorizedException,
} from '@nestjs/common';
import {
  BatchFailedError,
  InvalidInputError,
  isServingError,
  OverloadedError,
  ServingError,
  UnknownServingError,
} from 'nestjs-serving';
import * as everything from 'nestjs-serving';
import {
  answersByCode,
  errorAnswer,
} from '../../../lib/extensions/inference-protocol/server/error-answers.js';

describe('Errors of the protocol', () => {
  it('[18.5] Each error of a caller or of a busy server has an answer of its own', () => {
    const classes = Object.values(everything).filter(
      (each): each is typeof ServingError =>
        typeof each === 'function' && each.prototype instanceof ServingError,
    );
    const own = classes.map((type) => new type()).filter(({ statusCode }) => statusCode !== 500);

    expect(own.length).toBeGreaterThan(10);
    expect(own.filter(isServingError)).toHaveLength(own.length);
    expect(own.map((error) => [error.code, error.statusCode])).toEqual(
      own.map((error) => [error.code, answersByCode[error.code]?.[0]]),
    );
  });

  it.each([
    [new InvalidInputError('"x" is wrong'), 400, 3, '"x" is wrong'],
    [new UnknownServingError('There is no model'), 404, 5, 'There is no model'],
    [new UnauthorizedException('Who?'), 401, 16, 'Who?'],
    [new ForbiddenException('No'), 403, 7, 'No'],
    [new PayloadTooLargeException('Large'), 413, 8, 'Large'],
    [new NotImplementedException('Not here'), 501, 12, 'Not here'],
    [new BatchFailedError('secret path'), 500, 13, 'Internal Server Error (SERVING_BATCH_FAILED)'],
    [new Error('secret'), 500, 13, 'Internal Server Error'],
  ])('[18.5] %s is answered with %s', (error, status, grpc, message) => {
    expect(errorAnswer(error)).toMatchObject({ status, grpc, message });
  });

  it('[18.5] An error that a retry may mend says when', () => {
    const error = new OverloadedError('tenant "x" has all places', { retryAfter: 3 });

    expect(errorAnswer(error)).toEqual({
      status: 503,
      grpc: 14,
      message: 'Service Unavailable (SERVING_OVERLOADED)',
      retryAfter: 3,
      isFault: false,
    });
  });
});

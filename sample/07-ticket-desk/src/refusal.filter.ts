// #region filter
import { type ArgumentsHost, Catch, HttpException } from '@nestjs/common';
import { BaseExceptionFilter } from '@nestjs/core';
import {
  DeadlineExceededError,
  DeadlineTooShortError,
  OverloadedError,
  type ServingError,
} from 'nestjs-serving';

/**
 * Answers refused and late calls with their code. The metrics count them; an error in the log for
 * each of them would only add to the load.
 */
@Catch(OverloadedError, DeadlineTooShortError, DeadlineExceededError)
export class RefusalFilter extends BaseExceptionFilter {
  override catch({ code, statusCode }: ServingError, host: ArgumentsHost): void {
    // oxlint-disable-next-line promise/valid-params -- It is the method of a filter.
    super.catch(new HttpException({ statusCode, code }, statusCode), host);
  }
}
// #endregion

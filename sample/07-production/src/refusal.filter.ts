// #region filter
import { type ArgumentsHost, Catch, HttpException } from '@nestjs/common';
import {
  DeadlineExceededError,
  DeadlineTooShortError,
  OverloadedError,
  type ServingError,
  ServingExceptionFilter,
} from 'nestjs-serving';

/**
 * Answers refused and late calls with their code. The metrics count them; an error in the log for
 * each of them would only add to the load.
 */
@Catch(OverloadedError, DeadlineTooShortError, DeadlineExceededError)
export class RefusalFilter extends ServingExceptionFilter {
  override catch(refusal: ServingError, host: ArgumentsHost): void {
    const { code, statusCode } = refusal;
    // oxlint-disable-next-line promise/valid-params -- It is the method of a filter.
    super.catch(new HttpException({ statusCode, code }, statusCode, { cause: refusal }), host);
  }
}
// #endregion

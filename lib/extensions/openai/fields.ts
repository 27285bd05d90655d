import { formatValue } from '../../doors/text.js';
import { type Body, RequestError } from './http.js';

export const isString = (value: unknown): value is string => typeof value === 'string';
export const isText = (value: unknown): value is string => isString(value) && value !== '';
export const isFlag = (value: unknown): value is boolean => typeof value === 'boolean';
export const isCount = (value: unknown): value is number =>
  Number.isInteger(value) && Number(value) > 0;

/**
 * Field that clients may leave out, or set to null.
 *
 * @throws RequestError
 */
export function fieldIn<T>(
  body: Body,
  name: string,
  allowed: string,
  check: (value: unknown) => value is T,
): T | undefined {
  const value = body[name] ?? undefined;
  if (value !== undefined && !check(value)) {
    throw new RequestError(`"${name}" is ${formatValue(value)}; allowed is ${allowed}`, name);
  }
  return value;
}

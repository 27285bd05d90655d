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
 * @param within the object's path, such as `messages[0].`
 * @throws RequestError
 */
export function fieldIn<T>(
  body: Body,
  name: string,
  allowed: string,
  check: (value: unknown) => value is T,
  within = '',
): T | undefined {
  const value = body[name] ?? undefined;
  if (value !== undefined && !check(value)) {
    const field = within + name;
    throw new RequestError(`"${field}" is ${formatValue(value)}; allowed is ${allowed}`, field);
  }
  return value;
}

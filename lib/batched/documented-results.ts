import 'reflect-metadata';

/** The metadata key of `@nestjs/swagger` for the responses of a method, by status. */
const RESPONSES = 'swagger/apiResponse';

type Response = Readonly<Record<string, unknown>>;

/**
 * Corrects the response that the plugin of `@nestjs/swagger` derives from the type that the method
 * returns. A client of a batched method gets one entry of the list; where the method only prepares
 * the input of a serving, nothing is known of the reply. Decorators above `@Batched()` run later,
 * and what they say holds.
 */
export function correctResponses(method: object, replies: 'entries' | 'of a serving'): void {
  const responses = Reflect.getMetadata(RESPONSES, method) as
    Readonly<Record<string, Response>> | undefined;
  if (!responses) {
    return;
  }
  const corrected = Object.entries(responses).map(([status, response]) => {
    const { isArray: _, type, ...others } = response;
    const own = replies === 'entries' ? { ...others, type } : others;
    return [status, isError(status) ? response : own];
  });
  Reflect.defineMetadata(RESPONSES, Object.fromEntries(corrected), method);
}

function isError(status: string): boolean {
  return Number(status) >= 400;
}

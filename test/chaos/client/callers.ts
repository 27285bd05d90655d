import type { SquareRow } from '../server/options.js';
import type { Application } from './application.js';
import { Digits, type MakeCall, squareCall } from './calls.js';
import { HttpClient } from './http-client.js';

/** So many callers with numbers to be squared. */
export function squarers(count: number, row?: Omit<SquareRow, 'id'>): MakeCall[] {
  return Array.from({ length: count }, () => () => squareCall(row));
}

/** So many callers with digits to be read, each of them with others. */
export async function readers(application: Application, count: number): Promise<MakeCall[]> {
  const client = new HttpClient(application.url, 8);
  const digits = await Digits.ask(client);
  client.close();
  let next = 0;
  return Array.from({ length: count }, () => () => digits.call(next++));
}

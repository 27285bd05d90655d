import type { Ledger } from '../ledger.js';
import type { Subject } from '../subject.js';
import { digitsSubject } from './digits.subject.js';
import { functionSubject } from './function.subject.js';
import { threadSubject } from './thread.subject.js';

/** A serving of every kind. */
export function allSubjects(ledger: Ledger): Promise<readonly Subject[]> {
  return Promise.all([
    functionSubject(ledger, { name: 'function', share: 8, idempotent: false, batchTimeout: 1 }),
    functionSubject(ledger, {
      name: 'idempotent function',
      share: 7,
      idempotent: true,
      batchTimeout: 0,
    }),
    threadSubject(),
    digitsSubject(),
  ]);
}

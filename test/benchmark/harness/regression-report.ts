import { columns, numberText } from './report.js';
import type { Verdict } from './regression.js';

/** What has become of the recorded medians, for the terminal. */
export function regressionText(verdicts: readonly Verdict[], file: string): string {
  const those = (outcome: Verdict['outcome']): Verdict[] =>
    verdicts.filter((verdict) => verdict.outcome === outcome);
  const [worse, unclear] = [those('worse'), those('unclear')];
  const lines = [
    `compared with ${file}: ${those('kept').length} kept, ${worse.length} worse, ${unclear.length} unclear, ${those('new').length} not recorded`,
  ];
  if (worse.length + unclear.length > 0) {
    lines.push('', columns([headline, ...[...worse, ...unclear].map(rowOf)]));
  }
  if (unclear.length > 0) {
    lines.push(
      '',
      'unclear: the median is beyond the limit, but a quarter of the rounds is not. The machine was busy: run these again when it is quiet.',
    );
  }
  return lines.join('\n');
}

const headline = ['', 'what', 'recorded', 'limit', 'measured', ''];

function rowOf({ figure, title, unit, recorded, limit, measured, outcome }: Verdict): string[] {
  const text = (value = NaN): string => `${numberText(value)} ${unit}`;
  return [figure, title, text(recorded), text(limit), text(measured), outcome.toUpperCase()];
}

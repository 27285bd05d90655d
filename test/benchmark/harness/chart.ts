import type { Measurement } from './measurement.js';
import { aimText, numberText, rangeText } from './report.js';
import type { Summary } from './statistics.js';

const width = 960;
const margin = 24;
const barsFrom = 200;
const barsTo = 820;
const line = 20;
const palette = ['#2563eb', '#94a3b8', '#cbd5e1', '#e2e8f0'];

/** The measurements as one SVG picture: for each of them a headline and the bars of its sides. */
export function chart(title: string, measurements: readonly Measurement[]): string {
  let top = 2 * margin + line;
  const panels = measurements.map((measurement) => {
    const panel = `<g transform="translate(0 ${top})">${panelOf(measurement)}</g>`;
    top += heightOf(measurement);
    return panel;
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${top}" font-family="system-ui, sans-serif" font-size="13" fill="#1e293b">
<rect width="${width}" height="${top}" fill="#fff"/>
${text(margin, margin + line / 2, title, 'font-size="15" font-weight="600"')}
${panels.join('\n')}
</svg>
`;
}

function heightOf({ sides }: Measurement): number {
  return (Object.keys(sides).length + 1) * line + margin;
}

function panelOf({ figure, title, reached, unit, aim, sides, sideUnit }: Measurement): string {
  const result = `${rangeText(reached)} ${unit}${aim ? `, aim ${aimText(aim)}` : ''}`;
  const longest = Math.max(...Object.values(sides).map((side) => side.high));
  const bars = Object.entries(sides).map(([name, side], index) => {
    const bar = barOf(
      name,
      side,
      sideUnit,
      (barsTo - barsFrom) / longest,
      palette[Math.min(index, palette.length - 1)],
    );
    return `<g transform="translate(0 ${(index + 1) * line})">${bar}</g>`;
  });
  return [
    text(margin, 0, `${figure} ${title}`, 'font-weight="600"'),
    text(width - margin, 0, result, 'text-anchor="end"'),
    ...bars,
  ].join('\n');
}

/** The bar ends at the median; the whisker spans the middle half of the rounds. */
function barOf(
  name: string,
  { median, low, high }: Summary,
  unit: string,
  scale: number,
  color = '#e2e8f0',
): string {
  const at = (value: number): string => (barsFrom + Math.max(value, 0) * scale).toFixed(1);
  return [
    text(barsFrom - 8, 0, name, 'text-anchor="end"'),
    `<rect x="${barsFrom}" y="-11" width="${(Math.max(median, 0) * scale).toFixed(1)}" height="14" fill="${color}"/>`,
    `<path d="M${at(low)} -4H${at(high)}M${at(low)} -7v6M${at(high)} -7v6" stroke="#1e293b" fill="none"/>`,
    text(width - margin, 0, `${numberText(median)} ${unit}`, 'text-anchor="end"'),
  ].join('');
}

function text(x: number, y: number, content: string, attributes: string): string {
  const escaped = content.replaceAll('&', '&amp;').replaceAll('<', '&lt;');
  return `<text x="${x}" y="${y}" ${attributes}>${escaped}</text>`;
}

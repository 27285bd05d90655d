/** A line of the plot; `x` and `y` are numbers above 0. */
export interface PlotLine {
  readonly name: string;
  readonly points: readonly { readonly x: number; readonly y: number }[];
}

/** What a plot shows. */
export interface Plot {
  readonly title: string;
  readonly x: string;
  readonly y: string;
  readonly lines: readonly PlotLine[];
  /** A horizontal line at this height. */
  readonly limit?: { readonly name: string; readonly y: number };
}

const [WIDTH, HEIGHT] = [800, 480];
const AREA = { left: 70, right: 590, top: 50, bottom: 420 };

/** Colors that differ for readers with colour blindness (Okabe and Ito, 2008). */
const COLORS = [
  '#0072B2',
  '#D55E00',
  '#009E73',
  '#CC79A7',
  '#E69F00',
  '#56B4E9',
  '#F0E442',
  '#888',
];

/** An SVG image with a linear x axis from 0, and a logarithmic y axis. */
export function plotSvg({ title, x, y, lines, limit }: Plot): string {
  const points = lines.flatMap((line) => line.points);
  const mostX = niceAbove(Math.max(...points.map((point) => point.x), 1));
  const heights = [...points.map((point) => point.y), ...(limit ? [limit.y] : [])];
  const [low, high] = [
    Math.floor(Math.log10(Math.min(...heights, 1))),
    Math.ceil(Math.log10(Math.max(...heights, 1)) + 1e-9),
  ];
  const atX = (value: number): number => AREA.left + ((AREA.right - AREA.left) * value) / mostX;
  const atY = (value: number): number =>
    AREA.bottom - ((AREA.bottom - AREA.top) * (Math.log10(value) - low)) / Math.max(1, high - low);
  const parts = [
    text(AREA.left, 28, title, 'font-size="16" font-weight="bold"'),
    ...[0, 0.25, 0.5, 0.75, 1].map((share) => tickX(atX(mostX * share), shortened(mostX * share))),
    ...Array.from({ length: high - low + 1 }, (_, i) => 10 ** (low + i)).map((value) =>
      tickY(atY(value), shortened(value)),
    ),
    text((AREA.left + AREA.right) / 2, HEIGHT - 12, x, 'text-anchor="middle"'),
    text(
      16,
      (AREA.top + AREA.bottom) / 2,
      y,
      `text-anchor="middle" transform="rotate(-90 16 ${(AREA.top + AREA.bottom) / 2})"`,
    ),
    ...(limit
      ? [
          `<path d="M${AREA.left} ${round(atY(limit.y))}H${AREA.right}" stroke="currentColor" stroke-dasharray="6 4"/>`,
          text(AREA.left + 6, atY(limit.y) - 6, limit.name),
        ]
      : []),
    ...lines.flatMap((line, i) => drawn(line, i, atX, atY)),
  ];
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${HEIGHT}" font-family="sans-serif" font-size="12" fill="currentColor" role="img">
<title>${escaped(title)}</title>
<desc>${escaped(`${y} against ${x}: ${lines.map(({ name }) => name).join('; ')}`)}</desc>
<rect width="${WIDTH}" height="${HEIGHT}" fill="#fff"/>
<g color="#222">
${parts.join('\n')}
</g>
</svg>
`;
}

function drawn(
  { name, points }: PlotLine,
  i: number,
  atX: (value: number) => number,
  atY: (value: number) => number,
): string[] {
  const color = COLORS[i % COLORS.length]!;
  const path = points.map((point) => `${round(atX(point.x))},${round(atY(point.y))}`).join(' ');
  const legend = AREA.top + 20 + 18 * i;
  return [
    `<polyline points="${path}" fill="none" stroke="${color}" stroke-width="2"/>`,
    ...points.map(
      (point) =>
        `<circle cx="${round(atX(point.x))}" cy="${round(atY(point.y))}" r="3" fill="${color}"/>`,
    ),
    `<rect x="${AREA.right + 14}" y="${legend - 9}" width="12" height="10" fill="${color}"/>`,
    text(AREA.right + 32, legend, name),
  ];
}

function tickX(at: number, label: string): string {
  return `<path d="M${round(at)} ${AREA.top}V${AREA.bottom}" stroke="#ddd"/>${text(at, AREA.bottom + 18, label, 'text-anchor="middle"')}`;
}

function tickY(at: number, label: string): string {
  return `<path d="M${AREA.left} ${round(at)}H${AREA.right}" stroke="#ddd"/>${text(AREA.left - 8, at + 4, label, 'text-anchor="end"')}`;
}

function text(x: number, y: number, content: string, attributes = ''): string {
  return `<text x="${round(x)}" y="${round(y)}" ${attributes}>${escaped(content)}</text>`;
}

function escaped(content: string): string {
  return content.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}

function shortened(value: number): string {
  return String(Number(value.toPrecision(3)));
}

/** The next of 1, 2, 4, 5, 8, 10 times a power of ten. */
function niceAbove(value: number): number {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * ([1, 2, 4, 5, 8, 10].find((step) => step * power >= value) ?? 10);
}

import uPlot from './uplot.js';
import { element, shown } from './elements.js';

const HEIGHT = 150;

/** The charts of a serving; each has one or two columns of figures. */
const CHARTS = [
  { title: 'Calls per second', unit: '/s', lines: { answered: 'answered', failed: 'failed' } },
  { title: 'Rows per second', unit: '/s', lines: { rows: 'rows', padding: 'padding' } },
  { title: 'Rows per batch', unit: '', lines: { rowsPerBatch: 'mean' } },
  { title: 'Queue', unit: ' rows', lines: { queued: 'waiting' } },
  { title: 'Wait, ms', unit: ' ms', lines: { waitMedian: 'p50', waitP99: 'p99' } },
  { title: 'Run, ms', unit: ' ms', lines: { runMedian: 'p50', runP99: 'p99' } },
];

/** Draws the figures of a serving, and says in words what each chart shows. */
export class Charts {
  #views = [];

  constructor(place) {
    this.#views = CHARTS.map((chart) => viewOf(chart));
    place.replaceChildren(...this.#views.map(({ figure }) => figure));
    this.#views.forEach((view) => draw(view));
    const resized = new ResizeObserver(() => this.#views.forEach((view) => resize(view)));
    resized.observe(place);
    // A canvas does not follow the colours of the page.
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () =>
      this.#views.forEach((view) => draw(view)),
    );
  }

  /** Shows the columns of these times, in seconds since 1970. */
  show(times, columns, span) {
    const end = times.at(-1) ?? Date.now() / 1000;
    for (const view of this.#views) {
      const names = Object.keys(view.chart.lines);
      view.data = [times, ...names.map((name) => columns[name])];
      view.range = [end - span, end];
      view.plot.setData(view.data, false);
      view.plot.setScale('x', { min: view.range[0], max: view.range[1] });
      values(view);
      describe(view, span);
    }
  }
}

function viewOf(chart) {
  const names = Object.values(chart.lines);
  const swatches = names.map((_, i) => element('i', { class: i === 0 ? 'first' : 'second' }));
  const texts = names.map(() => element('span'));
  const plotPlace = element('div', { class: 'plot', role: 'img', 'aria-label': chart.title });
  const legend = element(
    'span',
    { class: 'legend', 'aria-hidden': 'true' },
    ...names.map((_, i) => element('span', {}, swatches[i], texts[i])),
  );
  const caption = element('figcaption', {}, element('b', {}, chart.title), legend);
  const figure = element('figure', {}, caption, plotPlace);
  const empty = [[], ...names.map(() => [])];
  return { chart, names, swatches, texts, plotPlace, figure, data: empty, range: [0, 1] };
}

function draw(view) {
  view.plot?.destroy();
  const { color: ink, borderTopColor: line } = getComputedStyle(view.plotPlace);
  const axis = {
    stroke: ink,
    font: '11px system-ui, sans-serif',
    grid: { stroke: line, width: 1 },
    ticks: { show: false },
  };
  const series = view.names.map((label, i) => {
    const { color } = getComputedStyle(view.swatches[i]);
    const fill = i === 0 ? color.replace(/^rgb\((.*)\)$/, 'rgba($1, 0.1)') : undefined;
    return {
      label,
      stroke: color,
      width: 2,
      dash: i === 0 ? [] : [5, 4],
      fill,
      points: { size: 4 },
    };
  });
  view.plot = new uPlot(
    {
      width: Math.max(100, view.plotPlace.clientWidth),
      height: HEIGHT,
      padding: [8, 26, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, sync: { key: 'board' } },
      scales: {
        x: { auto: false, range: () => view.range },
        y: { range: (_, __, most) => [0, most > 0 ? most * 1.1 : 1] },
      },
      axes: [
        { ...axis, space: 70, size: 26, values: (_, times) => times.map(timeOf) },
        { ...axis, space: 34, size: 46, values: (_, all) => all.map((each) => shown(each)) },
      ],
      series: [{}, ...series],
      hooks: { setCursor: [() => view.plot && values(view)] },
    },
    view.data,
    view.plotPlace,
  );
}

function resize(view) {
  view.plot.setSize({ width: Math.max(100, view.plotPlace.clientWidth), height: HEIGHT });
}

/** The legend has the values under the cursor, or else the latest ones. */
function values({ plot, chart, names, texts, data }) {
  const at = plot.cursor.idx ?? data[0].length - 1;
  names.forEach((name, i) => {
    const text = `${name} ${shown(data[i + 1][at], chart.unit)}`;
    if (texts[i].textContent !== text) {
      texts[i].textContent = text;
    }
  });
}

function describe({ chart, names, data, plotPlace }, span) {
  const parts = names.map((name, i) => {
    const known = data[i + 1].slice(-span).filter((value) => value !== null);
    if (known.length === 0) {
      return `${name} has no figures`;
    }
    const least = shown(Math.min(...known), chart.unit);
    const most = shown(Math.max(...known), chart.unit);
    return `${name} is ${shown(known.at(-1), chart.unit)}, and was between ${least} and ${most}`;
  });
  plotPlace.setAttribute(
    'aria-label',
    `Chart of ${chart.title} over ${Math.round(span / 60)} min: ${parts.join('; ')}`,
  );
}

export function timeOf(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString([], { hourCycle: 'h23' });
}

import { Charts, timeOf } from './charts.js';
import { element, setText, shown, syncChildren } from './elements.js';
import { showTables } from './tables.js';
import { ask, makeChange } from './changes.js';

/** Milliseconds between two polls, after one that failed, and for an answer. */
const POLL = 1000;
const POLL_AGAIN = 3000;
const POLL_TIMEOUT = 5000;
/** Milliseconds between two announcements to screen readers. */
const ANNOUNCE = 10_000;
const SPANS = [60, 300, 600, 1800, 3600];

const byId = (id) => document.getElementById(id);
const page = {
  /** The name of the serving that is shown. */
  chosen: undefined,
  isFrozen: false,
  reply: undefined,
  /** The last second that the page has of the serving. */
  since: -1,
  times: [],
  columns: {},
  batches: [],
  /** Seconds that the charts show. */
  span: 300,
};
let charts;
let polls = 0;
let timer;
let states = new Map();
let announcedAt = -Infinity;

/** Reads the figures, again and again while the page is visible. */
async function poll() {
  clearTimeout(timer);
  const own = ++polls;
  const { chosen, since, batches } = page;
  let pause = POLL;
  try {
    const query = new URLSearchParams({ since, batch: batches[0]?.number ?? -1 });
    if (chosen !== undefined) {
      query.set('serving', chosen);
    }
    const response = await fetch(`api?${query}`, {
      cache: 'no-store',
      signal: AbortSignal.timeout(POLL_TIMEOUT),
    });
    if (!response.ok) {
      throw new Error(
        response.status === 401 || response.status === 403
          ? `Access refused (${response.status})`
          : `Server error (${response.status})`,
      );
    }
    const reply = await response.json();
    if (own !== polls) {
      return;
    }
    take(reply);
    connection('live', 'Live');
  } catch (error) {
    if (own !== polls) {
      return;
    }
    pause = POLL_AGAIN;
    connection('lost', lossOf(error));
  }
  schedule(pause);
}

function lossOf(error) {
  if (error.name === 'TimeoutError') {
    return 'No answer';
  }
  return error instanceof TypeError ? 'No connection' : error.message;
}

function schedule(pause) {
  clearTimeout(timer);
  if (page.isFrozen) {
    connection('frozen', 'Frozen');
  } else if (document.visibilityState === 'visible') {
    timer = setTimeout(() => void poll(), pause);
  }
}

function connection(state, text) {
  byId('connection').dataset.state = state;
  setText(byId('connection-text'), text);
}

function take(reply) {
  if (reply.second <= page.since) {
    // The application has been started again.
    choose(page.chosen);
    return;
  }
  page.reply = reply;
  const { detail } = reply;
  if (detail) {
    add(detail, reply);
  }
  page.since = reply.second - 1;
  if (page.chosen === undefined && reply.servings.length > 0 && isWide()) {
    choose(reply.servings[0].name);
    return;
  }
  show();
}

function add({ from, figures, batches }, { second, now, seconds }) {
  const rowsPerBatch = figures.rows.map((rows, i) =>
    figures.batches[i] > 0 ? rows / figures.batches[i] : null,
  );
  for (const [name, values] of Object.entries({ ...figures, rowsPerBatch })) {
    page.columns[name] = [...(page.columns[name] ?? []), ...values].slice(-seconds);
  }
  const times = figures.rows.map((_, i) => Math.round(now / 1000) - (second - from - i) + 1);
  const last = page.times.at(-1) ?? -Infinity;
  // A poll that comes late moves no point back.
  page.times = [...page.times, ...times.map((time, i) => Math.max(time, last + i + 1))];
  page.times = page.times.slice(-seconds);
  page.batches = [...batches.toReversed(), ...page.batches].slice(0, 40);
}

function show() {
  const { reply, chosen } = page;
  const { servings, detail } = reply;
  const calls = servings.reduce((sum, each) => sum + each.calls, 0);
  const count = servings.length === 1 ? '1 serving' : `${servings.length} servings`;
  setText(byId('summary'), `${count}, ${shown(calls, ' calls/s')}`);
  showList(servings);
  announce(servings);
  const serving = servings.find(({ name }) => name === chosen);
  byId('detail').hidden = !detail;
  document.body.classList.toggle('chosen', chosen !== undefined);
  if (!detail || !serving) {
    return;
  }
  showServing(serving);
  charts ??= new Charts(byId('charts'));
  charts.show(page.times, page.columns, page.span);
  showFigures();
  const { changes: allowsChanges, watchedSince: since } = reply;
  showTables({ detail, batches: page.batches, since, allowsChanges, change });
}

function stateOf({ state, held, isReady, isLive, partitions }) {
  if (state !== 'ready') {
    return state;
  }
  if (held) {
    return held;
  }
  return !isLive
    ? 'failed'
    : !isReady
      ? 'down'
      : partitions.up < partitions.all
        ? 'degraded'
        : 'ready';
}

function showState(place, serving) {
  const state = stateOf(serving);
  place.dataset.state = state;
  setText(place, state);
}

function showList(servings) {
  const wanted = byId('filter').value.trim().toLowerCase();
  const found = servings.filter(({ name }) => name.toLowerCase().includes(wanted));
  syncChildren(
    byId('list'),
    found,
    ({ name }) => name,
    ({ name }) =>
      element(
        'li',
        {},
        element(
          'a',
          { href: `#${encodeURIComponent(name)}` },
          element('b', { title: name }, name),
          element('span', { class: 'state' }),
          element('span', { class: 'more' }, element('span'), element('span'), element('span')),
        ),
      ),
    (item, serving) => {
      const [link] = item.children;
      const [, state, more] = link.children;
      showState(state, serving);
      const [calls, rows, queued] = more.children;
      setText(calls, shown(serving.calls, ' calls/s'));
      setText(rows, shown(serving.rowsPerBatch, ' per batch'));
      setText(queued, shown(serving.queued, ' waiting'));
      link.setAttribute('aria-current', String(serving.name === page.chosen));
    },
  );
}

function showServing(serving) {
  const { changes, watchedSince } = page.reply;
  setText(byId('name'), serving.name);
  showState(byId('state'), serving);
  setText(byId('reason'), serving.reason ?? '');
  showActions(serving, changes);
  const latest = (name) => page.columns[name]?.at(-1);
  const pair = (a, b) => `${shown(latest(a))} / ${shown(latest(b))}`;
  const fill = latest('fill');
  const tiles = {
    'Ended calls/s, 5 s mean': shown(serving.calls),
    'Failed/s, 5 s mean': shown(serving.failed),
    'Rows/s, 5 s mean': shown(serving.rows),
    'Rows per batch, 5 s mean': shown(serving.rowsPerBatch),
    'Batch fill, last second': fill === null || fill === undefined ? '–' : shown(100 * fill, ' %'),
    'Waiting rows, now': shown(serving.queued),
    'Wait p50 / p99 in ms, last second': pair('waitMedian', 'waitP99'),
    'Run p50 / p99 in ms, last second': pair('runMedian', 'runP99'),
  };
  syncChildren(
    byId('tiles'),
    Object.keys(tiles),
    (name) => name,
    (name) => element('div', {}, element('dt', {}, name), element('dd')),
    (tile, name) => setText(tile.children[1], tiles[name]),
  );
  const since = watchedSince === undefined ? '' : timeOf(watchedSince / 1000);
  setText(
    byId('since'),
    `Wait, run, fill and the list of batches are recorded while a board is open: since ${since}.`,
  );
}

function showActions({ name, held }, allowsChanges) {
  const actions = allowsChanges
    ? [
        ['pause', 'Pause', held !== 'paused'],
        ['drain', 'Drain', held !== 'drained'],
        ['resume', 'Resume', held !== undefined],
        ['reload', 'Reload', page.reply.detail.versions.length > 0],
      ]
    : [];
  syncChildren(
    byId('actions'),
    actions,
    ([what]) => what,
    ([what, title]) => {
      const button = element('button', { type: 'button' }, title);
      button.addEventListener('click', () => change({ change: what }));
      return button;
    },
    (button, [, , isPossible]) => (button.disabled = !isPossible),
  );
  byId('actions').setAttribute('aria-label', `Changes of ${name}`);
}

/** Makes a change of the serving that is shown; says what went wrong. */
async function change(body) {
  const serving = page.chosen;
  const calls = page.reply.servings.find(({ name }) => name === serving)?.calls ?? 0;
  if (!(await ask({ serving, calls, ...body }))) {
    return;
  }
  setText(byId('message'), '');
  const { done, refused } = await makeChange({ serving, ...body });
  setText(byId('message'), refused ?? '');
  if (done) {
    setText(byId('live'), done);
  }
  void poll();
}

const FIGURES = [
  ['Answered/s', 'answered'],
  ['Failed/s', 'failed'],
  ['Rows/s', 'rows'],
  ['Padding/s', 'padding'],
  ['Rows per batch', 'rowsPerBatch'],
  ['Waiting rows', 'queued'],
  ['Wait p50, ms', 'waitMedian'],
  ['Wait p99, ms', 'waitP99'],
  ['Run p50, ms', 'runMedian'],
  ['Run p99, ms', 'runP99'],
];

/** The figures of the charts for those who do not see them: the last minute, the latest first. */
function showFigures() {
  const place = byId('figures');
  if (!place.open) {
    return;
  }
  const count = page.times.length;
  const rows = page.times
    .map((time, i) => ({ time, i }))
    .slice(Math.max(0, count - 60))
    .toReversed();
  const head = ['Time', ...FIGURES.map(([title]) => title)];
  const table = place.querySelector('table');
  table.replaceChildren(
    element(
      'thead',
      {},
      element('tr', {}, ...head.map((each) => element('th', { scope: 'col' }, each))),
    ),
    element(
      'tbody',
      {},
      ...rows.map(({ time, i }) =>
        element(
          'tr',
          {},
          element('th', { scope: 'row' }, timeOf(time)),
          ...FIGURES.map(([, name]) => element('td', {}, shown(page.columns[name][i]))),
        ),
      ),
    ),
  );
}

/** Says which servings have changed their state, seldom. */
function announce(servings) {
  const now = new Map(servings.map((each) => [each.name, stateOf(each)]));
  if (performance.now() - announcedAt < ANNOUNCE) {
    return;
  }
  const changed = [...now].filter(
    ([name, state]) => states.has(name) && states.get(name) !== state,
  );
  states = now;
  if (changed.length > 0) {
    announcedAt = performance.now();
    const text = changed.slice(0, 5).map(([name, state]) => `${name} is ${state}`);
    setText(byId('live'), text.join(', '));
  }
}

function isWide() {
  return matchMedia('(min-width: 861px)').matches;
}

/** Shows another serving, from its first figure on. */
function choose(name) {
  Object.assign(page, { chosen: name, since: -1, times: [], columns: {}, batches: [] });
  setText(byId('message'), '');
  void poll();
}

function chooseFromAddress() {
  const name = decodeURIComponent(location.hash.slice(1));
  choose(name === '' ? undefined : name);
}

addEventListener('hashchange', () => {
  chooseFromAddress();
  // The list is gone on a phone, so the focus goes where the page is read on.
  const place = page.chosen === undefined ? byId('filter') : byId('detail');
  place.hidden = false;
  place.focus({ preventScroll: true });
  scrollTo(0, 0);
});
document.addEventListener('visibilitychange', () => {
  if (document.visibilityState === 'visible' && !page.isFrozen) {
    void poll();
  }
});
byId('filter').addEventListener('input', () => page.reply && showList(page.reply.servings));
byId('figures').addEventListener('toggle', () => page.reply && showFigures());
byId('freeze').addEventListener('click', () => {
  page.isFrozen = !page.isFrozen;
  byId('freeze').setAttribute('aria-pressed', String(page.isFrozen));
  if (page.isFrozen) {
    schedule(POLL);
  } else {
    void poll();
  }
});
for (const span of SPANS.slice(0, 3)) {
  const option = element('option', { value: String(span) }, `${span / 60} min`);
  option.selected = span === page.span;
  byId('span').append(option);
}
byId('span').addEventListener('change', () => {
  page.span = Number(byId('span').value);
  if (page.reply?.detail) {
    show();
  }
});
chooseFromAddress();

import { element, setText, shown, syncTable } from './elements.js';
import { timeOf } from './charts.js';

const place = (id) => document.getElementById(id);
const ms = (value) => shown(value, ' ms');

/** Shows the tables of a serving. Their buttons exist only where the board allows changes. */
export function showTables({ detail, batches, since, allowsChanges, change }) {
  const { name, partitions, nodes, versions, counters } = detail;
  syncTable(
    place('batches'),
    batchColumns,
    batches,
    ({ number }) => number,
    since === undefined ? 'None.' : `None since ${timeOf(since / 1000)}.`,
  );
  // Fields belong to one serving: those of another are made anew.
  const keyOf = ({ key }) => `${name}\0${key}`;
  const keyed = keysWithTargets(detail).map((each) => ({
    ...each,
    // A budget is in none of the keys' facts, but in those of their batches.
    most: batches.find(({ key, cost }) => key === each.key && cost)?.cost.most,
  }));
  showKeys(place('keys'), keyed, keyOf, allowsChanges && change);
  syncTable(
    place('partitions'),
    partitionColumns,
    partitions.map((each, index) => ({ ...each, index })),
    ({ index }) => `${name}\0${index}`,
    'This serving has no partitions here.',
  );
  place('nodes-section').hidden = !nodes;
  syncTable(
    place('nodes'),
    nodeColumns,
    nodes ?? [],
    ({ id }) => `${name}\0${id}`,
    'No node has this serving.',
  );
  syncTable(
    place('versions'),
    allowsChanges ? [...versionColumns, versionActions(change)] : versionColumns,
    versions,
    ({ version }) => `${name}\0${version}`,
    'This serving has no versions.',
  );
  const failures = Object.entries(counters?.failed ?? {}).toSorted(([, a], [, b]) => b - a);
  syncTable(place('failures'), failureColumns, failures, ([code]) => code, 'None.');
}

const batchColumns = [
  { title: 'Ended', text: ({ at }) => timeOf(at / 1000) },
  {
    title: 'Rows / limit',
    make: ({ rows, batchSize, fill, cost }) => [
      element('meter', { min: '0', max: '1', value: String(fill), 'aria-hidden': 'true' }),
      cost ? `${rows} rows, cost ${cost.padded} / ${cost.most}` : `${rows} / ${batchSize}`,
    ],
  },
  { title: 'Closed by', text: ({ reason }) => reason },
  { title: 'Waited', kind: 'number', text: ({ wait }) => ms(wait) },
  { title: 'Ran', kind: 'number', text: ({ runTime }) => ms(runTime) },
  { title: 'Partition', kind: 'number', text: ({ partition }) => String(partition) },
  { title: 'Key', kind: 'name', text: ({ key }) => key },
  { title: 'Version', kind: 'name', text: ({ version = '' }) => version },
  {
    title: 'Padding',
    kind: 'number',
    text: ({ padding, cost }) => (cost ? `cost ${cost.padded - cost.sum}` : String(padding)),
  },
  { title: 'Origin', text: ({ origin = '' }) => origin },
  { title: 'Error', kind: 'wrong', text: ({ error = '' }) => error },
];

const nodeColumns = [
  { title: 'Node', isHeader: true, kind: 'name', text: nodeName },
  stateColumn(({ state, isReady }) => (state === 'up' ? (isReady ? 'ready' : 'down') : state)),
  { title: 'Weight', kind: 'number', text: ({ weight }) => shown(weight) },
  { title: 'Partitions up', kind: 'number', text: ({ partitions }) => shown(partitions) },
  { title: 'Calls of other nodes', kind: 'number', text: ({ activeCalls }) => shown(activeCalls) },
  { title: 'Waiting rows', kind: 'number', text: ({ queued }) => shown(queued) },
  {
    title: 'Mean run',
    kind: 'number',
    text: ({ batchTime }) => (batchTime === 0 ? '–' : ms(batchTime)),
  },
];

function nodeName({ id, isSelf }) {
  return isSelf ? `${id} (this node)` : id;
}

/** A state with its mark: `markOf` is one of the states in the style sheet. */
function stateColumn(markOf, textOf = markOf) {
  return {
    title: 'State',
    make: () => [element('span', { class: 'state' })],
    update(cell, each) {
      const [badge] = cell.children;
      badge.dataset.state = markOf(each);
      setText(badge, textOf(each));
    },
  };
}

const partitionColumns = [
  { title: 'Partition', isHeader: true, text: ({ index }) => String(index) },
  stateColumn(
    ({ state }) => (state === 'up' ? 'ready' : state === 'restarting' ? 'starting' : 'down'),
    ({ state }) => state,
  ),
  { title: 'Runs on', text: ({ provider = '–' }) => provider },
  { title: 'Restarts', kind: 'number', text: ({ restarts }) => String(restarts) },
  { title: 'Reason', kind: 'wide', text: ({ reason = '' }) => reason },
];

const percent = (share) => shown(100 * share, ' %');
const failed = ({ counters }) =>
  Object.values(counters.failed).reduce((sum, each) => sum + each, 0);

const versionColumns = [
  { title: 'Version', isHeader: true, kind: 'name', text: ({ version }) => version },
  { title: 'Role', text: ({ role }) => role },
  {
    title: 'Share',
    kind: 'number',
    text: ({ share }) => (share === undefined ? '' : percent(share)),
  },
  { title: 'Answered', kind: 'number', text: ({ counters }) => shown(counters.answered) },
  { title: 'Failed', kind: 'number', text: (each) => shown(failed(each)) },
  { title: 'Rows', kind: 'number', text: ({ counters }) => shown(counters.rows) },
  { title: 'Waiting rows', kind: 'number', text: ({ queued }) => shown(queued) },
  { title: 'Beside the active version', kind: 'wide', text: comparisonOf },
];

function comparisonOf({ comparison }) {
  return comparison
    ? `${shown(comparison.compared)} replies compared, ${shown(comparison.different)} differ ` +
        `(${percent(comparison.differing)} of elements, at most by ` +
        `${shown(comparison.largestDifference)}); ${shown(comparison.failed)} failed, ` +
        `${shown(comparison.dropped)} dropped`
    : '';
}

function versionActions(change) {
  const button = (what, title, { version }) => {
    const made = element('button', { type: 'button', 'aria-label': `${title} ${version}` }, title);
    made.addEventListener('click', () => change({ change: what, version }));
    return made;
  };
  return {
    title: 'Change',
    make: (each) => [button('promote', 'Promote', each), button('rollback', 'Roll back', each)],
    update(cell, { role }) {
      [...cell.children].forEach((each) => (each.hidden = role !== 'canary' && role !== 'shadow'));
    },
  };
}

const failureColumns = [
  { title: 'Code', isHeader: true, text: ([code]) => code },
  { title: 'Calls', kind: 'number', text: ([, count]) => count.toLocaleString('en') },
];

function keysWithTargets({ keys, targets }) {
  return keys.map((each) => ({ ...each, target: targets.find(({ key }) => key === each.key) }));
}

/** Fields where values can be changed, else texts. */
function showKeys(table, keys, keyOf, change) {
  const columns = [
    { title: 'Key', isHeader: true, kind: 'name', text: ({ key }) => key },
    valueColumn('Batch size', 'batchSize', change),
    { title: 'Cost limit', kind: 'number', text: ({ most }) => shown(most) },
    valueColumn('Batch timeout, ms', 'batchTimeout', change),
    {
      title: 'Latency target',
      kind: 'number',
      text: ({ target }) => (target ? ms(target.latencyTarget) : '–'),
    },
    { title: 'Size by target', kind: 'number', text: ({ target }) => shown(target?.batchSize) },
    { title: 'Expected run', kind: 'number', text: ({ target }) => ms(target?.expected) },
  ];
  syncTable(table, columns, keys, keyOf, 'This serving has no keys here.');
}

function valueColumn(title, name, change) {
  if (!change) {
    return { title, kind: 'number', text: (each) => shown(each[name]) };
  }
  return {
    title,
    make: (each) => [fieldOf(title, name, each, change)],
    update(cell, each) {
      const input = cell.querySelector('input');
      // What the user types stays until it is sent.
      if (input.value === input.dataset.known || input.value === String(each[name])) {
        input.value = input.dataset.known = String(each[name]);
      }
    },
  };
}

function fieldOf(title, name, { key, [name]: value }, change) {
  const input = element('input', {
    type: 'number',
    min: name === 'batchSize' ? '1' : '0',
    step: name === 'batchSize' ? '1' : 'any',
    required: '',
    'aria-label': `${title} of ${key}`,
    'data-known': String(value),
    value: String(value),
  });
  const button = element('button', { 'aria-label': `Set ${title} of ${key}` }, 'Set');
  const form = element('form', {}, input, button);
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    input.dataset.known = input.value;
    change({ change: name, key, value: Number(input.value) });
  });
  return form;
}

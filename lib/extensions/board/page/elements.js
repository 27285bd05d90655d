/** An element. Names that users gave come as text, which is never read as HTML. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** Changes a text only where it differs, so that screen readers and selections are left alone. */
export function setText(place, text) {
  if (place.textContent !== text) {
    place.textContent = text;
  }
}

/**
 * Shows a child for each item. Children of items that stay are kept, with the focus in them: `make`
 * creates one, `update` shows the item.
 */
export function syncChildren(parent, items, keyOf, make, update) {
  parent.shown ??= new Map();
  const wanted = new Set(items.map((item) => String(keyOf(item))));
  for (const [key, child] of parent.shown) {
    if (!wanted.has(key)) {
      child.remove();
      parent.shown.delete(key);
    }
  }
  items.forEach((item, place) => {
    const key = String(keyOf(item));
    const child = parent.shown.get(key) ?? make(item);
    parent.shown.set(key, child);
    if (parent.children[place] !== child) {
      parent.insertBefore(child, parent.children[place] ?? null);
    }
    update?.(child, item);
  });
}

/**
 * Shows a table. A column has a `title`, and `text` of an item or `make` and `update` of a cell;
 * `kind` is its class.
 */
export function syncTable(table, columns, items, keyOf, none) {
  if (!table.tHead) {
    const titles = columns.map(({ title, kind = '' }) =>
      element('th', { scope: 'col', class: kind === 'number' ? kind : '' }, title),
    );
    table.createTHead().append(element('tr', {}, ...titles));
    table.createTBody();
  }
  const rows = items.length === 0 && none !== undefined ? [undefined] : items;
  syncChildren(
    table.tBodies[0],
    rows,
    (item) => (item === undefined ? '\0none' : keyOf(item)),
    (item) =>
      item === undefined
        ? element('tr', {}, element('td', { class: 'none', colspan: String(columns.length) }, none))
        : rowOf(columns, item),
    (row, item) =>
      item === undefined ? setText(row.cells[0], none) : updateRow(row, columns, item),
  );
}

function rowOf(columns, item) {
  const cells = columns.map(({ kind = '', isHeader, make }) => {
    const cell = element(isHeader ? 'th' : 'td', isHeader ? { scope: 'row' } : {});
    cell.className = kind;
    cell.append(...(make?.(item) ?? []));
    return cell;
  });
  return element('tr', {}, ...cells);
}

function updateRow(row, columns, item) {
  columns.forEach(({ text, update: updateCell }, i) => {
    const cell = row.cells[i];
    if (text) {
      setText(cell, text(item));
    }
    updateCell?.(cell, item);
  });
}

/** A number with about three digits, and its unit. */
export function shown(value, unit = '') {
  if (value === undefined || value === null) {
    return '–';
  }
  const digits = value === 0 || Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return value.toLocaleString('en', { maximumFractionDigits: digits }) + unit;
}

export {
  afterRun,
  fromWire,
  hasRun,
  InvalidServingError,
  isA,
  isError,
  kindOf,
  messageOf,
  noteRun,
  ServingLoadError,
  toWire,
  type WireError,
} from '../core/errors.js';
export {
  closestName,
  formatBytes,
  formatValue,
  literalOf,
  propertyOf,
  statusText,
  truncate,
  typeName,
} from '../core/format.js';
export { logTo } from '../core/log.js';

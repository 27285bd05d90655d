export {
  checkOptions,
  DEFAULT_VERSION,
  delay,
  flag,
  groupOf,
  isRecord,
  LONGEST_DELAY,
  milliseconds,
  oneOf,
  type Rule,
  type Rules,
  whole,
} from '../core/definition/option-rules.js';
export { portRules } from '../core/definition/resolve-definition.js';
export { runtimeRules } from '../core/definition/runtime-rules.js';
export { checkedModule, refuseSecond } from '../nest/serving.module-definition.js';
export type { FunctionServingDefinition } from '../core/definition/serving-definition.js';

import {
  flag,
  isRecord,
  LONGEST_DELAY as LARGEST,
  oneOf,
  type Rule,
  type Rules,
  whole,
} from './option-rules.js';

const aText: Rule = { check: (value) => typeof value === 'string', allowed: 'a string' };

const size = whole(1, LARGEST);

function isTexts(value: unknown): boolean {
  return typeof value === 'string' || (isRecord(value) && Object.values(value).every(isTexts));
}

const isName = (value: unknown): boolean => typeof value === 'string' && value !== '';

const executionProviders: Rule = {
  check: (value) =>
    Array.isArray(value) &&
    value.every((provider) => isName(isRecord(provider) ? provider['name'] : provider)),
  allowed: "a list of providers: names, or objects with a name, such as ['cuda', 'cpu']",
};

/** Options of onnxruntime. Its C API would take wrong values for others, or crash. */
export const runtimeRules: Rules = {
  executionProviders,
  intraOpNumThreads: whole(0, LARGEST),
  interOpNumThreads: whole(0, LARGEST),
  freeDimensionOverrides: {
    check: (value) => isRecord(value) && Object.values(value).every(size.check),
    allowed: `an object of the axes' sizes by name, each ${size.allowed}`,
  },
  graphOptimizationLevel: oneOf('disabled', 'basic', 'extended', 'layout', 'all'),
  enableCpuMemArena: flag,
  enableMemPattern: flag,
  executionMode: oneOf('sequential', 'parallel'),
  optimizedModelFilePath: aText,
  enableProfiling: flag,
  profileFilePrefix: aText,
  logId: aText,
  logSeverityLevel: whole(0, 4),
  logVerbosityLevel: whole(0, LARGEST),
  preferredOutputLocation: {
    check: (value) => isName(value) || isRecord(value),
    allowed: 'a location, or an object of locations by output',
  },
  enableGraphCapture: flag,
  extra: {
    check: (value) => isRecord(value) && isTexts(value),
    allowed: 'an object of strings, or of such objects',
  },
  externalData: { check: Array.isArray, allowed: 'a list of files' },
};

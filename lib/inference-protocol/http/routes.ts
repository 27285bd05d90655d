/** The paths of a call of a model, with and without a version. */
export function ofModel(call: string): string[] {
  return ['models/:model', 'models/:model/versions/:version'].map((path) => path + call);
}

/** Calls that read. */
export const READ: string[] = [
  '',
  'health/live',
  'health/ready',
  'models/stats',
  ...['', '/ready', '/config', '/stats'].flatMap(ofModel),
];

/** Calls that have a body. */
export const CALL: string[] = [
  ...ofModel('/infer'),
  'repository/index',
  'repository/models/:model/load',
  'repository/models/:model/unload',
];

/** Calls of extensions that are not supported. */
export const UNSUPPORTED: string[] = ['systemsharedmemory', 'cudasharedmemory'].flatMap(
  (memory) => [
    `${memory}/status`,
    `${memory}/region/:region/status`,
    `${memory}/region/:region/register`,
    `${memory}/unregister`,
    `${memory}/region/:region/unregister`,
  ],
);

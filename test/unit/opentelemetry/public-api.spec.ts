import { expect, it } from '@jest/globals';
import * as api from 'nestjs-serving/opentelemetry';

it('exports exactly what the manual names', () => {
  expect(Object.keys(api).toSorted()).toMatchInlineSnapshot(`
   [
     "ServingOpenTelemetryModule",
     "observeWithOpenTelemetry",
   ]
  `);
});

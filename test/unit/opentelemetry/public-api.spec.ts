import { expect, it } from '@jest/globals';
import * as api from 'nestjs-serving/opentelemetry';

it('The OpenTelemetry entry point exports exactly the documented names', () => {
  expect(Object.keys(api).toSorted()).toMatchInlineSnapshot(`
   [
     "ServingOpenTelemetryModule",
     "observeWithOpenTelemetry",
   ]
  `);
});

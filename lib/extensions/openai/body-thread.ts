import { doJobs } from '../../encoding/job-thread.js';
import { type ParsedJson, parseJson } from '../../encoding/json.js';
import { type LargeBody, textLimits } from './http.js';

/** Runs in a thread. */
void doJobs<LargeBody, ParsedJson>(() => ({ body }) => ({
  content: parseJson(Buffer.from(body.buffer, body.byteOffset, body.length), textLimits),
  moved: [],
}));

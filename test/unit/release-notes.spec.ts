import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, expect, it } from '@jest/globals';

const script = fileURLToPath(new URL('../../scripts/release-notes.js', import.meta.url));
const folder = mkdtempSync(join(tmpdir(), 'release-'));
afterAll(() => rmSync(folder, { recursive: true }));

function notesOf(tag: string, changelog: string): { status: number | null; text: string } {
  writeFileSync(join(folder, 'package.json'), '{ "version": "0.2.0" }');
  writeFileSync(join(folder, 'CHANGELOG.md'), changelog);
  const { status, stdout, stderr } = spawnSync(process.execPath, [script, tag, folder], {
    encoding: 'utf8',
  });
  return { status, text: stdout + stderr };
}

it('A release has the notes of its version in the changelog', () => {
  const changelog =
    '# Changelog\n\n## Unreleased\n\n## 0.2.0 (2026-12-01)\n\n### Tasks\n\n- New: b\n\n## 0.1.0\n\n- a\n';

  expect(notesOf('v0.2.0', changelog)).toEqual({ status: 0, text: '### Tasks\n\n- New: b\n' });
});

it.each([
  ['the tag is of another version', 'v0.3.0', '## 0.2.0\n\n- b\n', 'has the version 0.2.0'],
  [
    'the version is not in the changelog',
    'v0.2.0',
    '## 0.1.0\n\n- a\n',
    'says nothing about 0.2.0',
  ],
  [
    'changes are unreleased',
    'v0.2.0',
    '## Unreleased\n\n- c\n\n## 0.2.0\n\n- b\n',
    'has changes under "Unreleased"',
  ],
])('A release is refused if %s', (_, tag, changelog, mistake) => {
  expect(notesOf(tag, changelog)).toEqual({ status: 1, text: expect.stringContaining(mistake) });
});

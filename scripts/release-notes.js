// Prints what the changelog says of the version of a tag: node scripts/release-notes.js v0.1.0. Fails if package, changelog and tag disagree.
import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';

const [tag, folder = '.'] = process.argv.slice(2);
const textOf = (name) => readFileSync(resolve(folder, name), 'utf8');
const { version } = JSON.parse(textOf('package.json'));
const changes = new Map(
  textOf('CHANGELOG.md')
    .split(/^## /m)
    .slice(1)
    .map((section) => {
      const [title, ...lines] = section.split('\n');
      return [title.split(' ')[0], lines.join('\n').trim()];
    }),
);

const notes = changes.get(version);
const mistake =
  tag !== `v${version}`
    ? `The tag is ${tag}, and package.json has the version ${version}`
    : !notes
      ? `CHANGELOG.md says nothing about ${version}`
      : changes.get('Unreleased')
        ? `CHANGELOG.md has changes under "Unreleased": move them to ${version}`
        : undefined;
if (mistake) {
  console.error(mistake);
  process.exitCode = 1;
} else {
  console.log(notes);
}

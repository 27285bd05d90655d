import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';
import { InvalidServingError } from '../../index.js';

export interface PageFile {
  readonly text: string;
  readonly type: string;
  readonly etag: string;
}

const require = createRequire(import.meta.url);

const HTML = 'text/html; charset=utf-8';
const CSS = 'text/css; charset=utf-8';
const SCRIPT = 'text/javascript; charset=utf-8';
const SVG = 'image/svg+xml';

const OWN_FILES = {
  'board.css': CSS,
  'icon.svg': SVG,
  'board.js': SCRIPT,
  'changes.js': SCRIPT,
  'charts.js': SCRIPT,
  'elements.js': SCRIPT,
  'tables.js': SCRIPT,
};

/** Base for a URL that ends with a slash. */
const BASE = '<base href="./" />';

export class PageFiles {
  private constructor(
    private readonly files: ReadonlyMap<string, PageFile>,
    private readonly index: PageFile,
    private readonly indexWithoutSlash: PageFile,
  ) {}

  /**
   * @param folder the path's last name
   * @throws InvalidServingError without uPlot or the page's files
   */
  static async read(folder: string): Promise<PageFiles> {
    const html = await own('index.html');
    const files = new Map([
      ['uplot.js', fileOf(await ofUplot('uPlot.esm.js'), SCRIPT)],
      ['uplot.css', fileOf(await ofUplot('uPlot.min.css'), CSS)],
    ]);
    for (const [name, type] of Object.entries(OWN_FILES)) {
      files.set(name, fileOf(await own(name), type));
    }
    const withFolder = html.replace(BASE, `<base href="./${folder}/" />`);
    return new PageFiles(files, fileOf(html, HTML), fileOf(withFolder, HTML));
  }

  /** Relative addresses work behind any prefix and proxy; their base depends on the final slash. */
  page(url: string): PageFile {
    return url.split('?', 1)[0]!.endsWith('/') ? this.index : this.indexWithoutSlash;
  }

  find(name: string): PageFile | undefined {
    return this.files.get(name);
  }
}

function fileOf(text: string, type: string): PageFile {
  const hash = createHash('sha256').update(text).digest('base64url').slice(0, 22);
  return { text, type, etag: `"${hash}"` };
}

async function own(name: string): Promise<string> {
  const path = fileURLToPath(new URL(`./page/${name}`, import.meta.url));
  try {
    return await readFile(path, 'utf8');
  } catch (cause) {
    throw new InvalidServingError(
      `ServingBoardModule has not found ${path}; when the application is bundled, leave ` +
        'nestjs-serving out of the bundle',
      { cause },
    );
  }
}

async function ofUplot(name: string): Promise<string> {
  try {
    return await readFile(require.resolve(`uplot/dist/${name}`), 'utf8');
  } catch (cause) {
    throw new InvalidServingError(
      'ServingBoardModule draws its charts with uPlot; install it: npm install uplot',
      { cause },
    );
  }
}

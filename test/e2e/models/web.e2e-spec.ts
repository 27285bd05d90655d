import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import { execFileSync } from 'node:child_process';
import { access, mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setImmediate as turn } from 'node:timers/promises';
import { ServingLoadError } from 'nestjs-serving';
import { weightsApartModel } from '../../fixtures/models/models.js';
import { describeWithCertificate } from '../../fixtures/cluster/certificates.js';
import { describeUnless } from '../../fixtures/describe-unless.js';
import { type AppProcess, useAppProcesses } from '../../fixtures/http/app-process.js';
import {
  answering,
  cutting,
  flipping,
  hanging,
  ModelServer,
  sha256,
} from '../../fixtures/http/model-server.js';
import { missing } from '../../fixtures/http/server-process.js';
import { useModelCache } from '../../fixtures/http/use-model-cache.js';
import { useModelApps } from '../../fixtures/serving/use-model-apps.js';

const file = '/digits.onnx?signature=secret';

describe('A model at an address', () => {
  const cache = useModelCache();
  const create = useModelApps();
  const run = useAppProcesses();
  let digits: Uint8Array;
  let server: ModelServer;
  let model: { readonly file: string; readonly sha256: string };
  let path: string;

  beforeEach(async () => {
    digits = await readFile('sample/01-digits/model/digits.onnx');
    server = await new ModelServer().listen();
    server.add(file, digits);
    model = { file: server.origin + file, sha256: sha256(digits) };
    path = join(cache.folder, 'nestjs-serving/models', sha256(digits), 'digits.onnx');
  });

  afterEach(() => server.close());

  async function failureOf(wrong: Parameters<typeof create>[0]): Promise<string> {
    const { app } = await create(wrong);
    const error = await app.init().then(
      () => new Error('The application started'),
      (reason: unknown) => reason as Error,
    );
    expect(error).toBeInstanceOf(ServingLoadError);
    expect(error.message).toContain(
      `Serving "digits": Cannot fetch the model ${server.origin}/digits.onnx to ${cache.folder}/nestjs-serving/models: `,
    );
    expect(error.message).not.toContain('secret');
    return error.message;
  }

  /** An application in a process of its own, with the cache of the test. */
  function start(own: object = model, env: readonly string[] = []): AppProcess {
    return run('fetched-model', { model: own }, ['env', `XDG_CACHE_HOME=${cache.folder}`, ...env]);
  }

  /** Resolves when that many files are being written. */
  async function incomplete(count: number): Promise<void> {
    while ((await incompleteFiles()).length !== count) {
      await turn();
    }
  }

  async function incompleteFiles(): Promise<string[]> {
    return (await cache.files()).filter((each) => each.endsWith('.incomplete'));
  }

  it('[1.10] The model is fetched at boot, answers, and is not fetched again', async () => {
    const { app, lines, probabilities } = await create(model);
    await app.init();
    expect(await probabilities()).toMatchObject({ dims: [1, 10] });
    expect(lines).toEqual([
      `Serving "digits" downloads ${server.origin}/digits.onnx (407 kB)`,
      `Serving "digits" has ${server.origin}/digits.onnx in ${path}`,
      expect.stringMatching(/^Serving "digits" is ready: /),
    ]);

    const again = await create(model);
    await again.app.init();
    expect(await again.probabilities()).toMatchObject({ dims: [1, 10] });
    expect(server.requests).toEqual([`GET ${file}`]);
    expect(server.tokens).toEqual([undefined]);
  });

  it('[1.10] A redirect is followed', async () => {
    const other = await new ModelServer().listen();
    other.add('/stored', digits);
    server.next.push(answering(302, { location: `${other.origin}/stored` }));
    await (await create(model)).app.init();
    await other.close();

    expect(other.requests).toEqual(['GET /stored']);
  });

  it('[1.10] A server that redirects without end fails the boot', async () => {
    server.next.push(...Array.from({ length: 20 }, () => answering(307, { location: file })));

    expect(await failureOf(model)).toContain('redirected more than 10 times');
    expect(server.requests).toHaveLength(11);
  });

  it('[1.10] The download is tried again when the connection is cut in the middle', async () => {
    server.next.push(cutting(digits), answering(502));
    const { app, lines } = await create(model);
    await app.init();

    expect(server.requests).toHaveLength(3);
    expect(lines).toContainEqual(
      expect.stringMatching(/The connection broke after \d+ bytes: .+; attempt 2 of 4 in 500 ms$/),
    );
    expect(await incompleteFiles()).toEqual([]);
  });

  it('[1.10] A file with a flipped bit is deleted, and the boot fails with both hashes', async () => {
    server.next.push(flipping(digits));

    expect(await failureOf(model)).toMatch(
      new RegExp(`SHA-256 [\\da-f]{64}, and the definition says ${sha256(digits)}`),
    );
    await expect(access(path)).rejects.toThrow('ENOENT');
    expect(await incompleteFiles()).toEqual([]);
    expect(server.requests).toHaveLength(1);
  });

  it('[1.10] A file of the cache that was damaged is fetched again', async () => {
    await mkdir(join(path, '..'), { recursive: true });
    await writeFile(path, 'damaged');
    await (await create(model)).app.init();

    expect(server.requests).toHaveLength(1);
  });

  it.each([
    [401, 'the address needs a login, or has expired'],
    [403, 'the address needs a login, or has expired'],
    [404, 'check the address'],
  ])('[1.10] The boot fails with a remedy for status %d', async (status, remedy) => {
    server.next.push(answering(status));
    const message = await failureOf(model);

    expect(message).toContain(`answered ${status}; ${remedy}`);
    expect(server.requests).toHaveLength(1);
  });

  it('[1.10] A model with weights in another file is refused, since its SHA-256 does not pin them', async () => {
    const apart = weightsApartModel('model.onnx_data');
    server.add(file, apart);

    expect(await failureOf({ ...model, sha256: sha256(apart) })).toContain(
      'it keeps weights in another file, model.onnx_data, whose content sha256 does not pin',
    );
  });

  it('[1.10] A folder that cannot be written to fails the boot with its name', async () => {
    const blocked = join(cache.folder, 'nestjs-serving');
    await writeFile(blocked, 'a file where the folder should be');

    expect(await failureOf(model)).toMatch(
      /The file \(407456 bytes\) cannot be written to the cache folder .*(ENOTDIR|EEXIST).* choose another folder with XDG_CACHE_HOME/,
    );
  });

  it('[1.10] Two processes that fetch the same model at once both answer', async () => {
    const hold = hanging(digits);
    const slow = hanging(digits);
    server.next.push(hold.answer, slow.answer);
    const processes = [1, 2].map(() => start());
    await Promise.all([hold.begun, slow.begun]);
    await incomplete(2);
    server.closeConnections();

    for (const each of processes) {
      expect(await each.messages('reply')).toEqual([[1, 10]]);
      expect(await each.ended).toMatchObject({ code: 0, output: '' });
    }
    expect(await cache.files()).toContain(`nestjs-serving/models/${sha256(digits)}/digits.onnx`);
    expect(await incompleteFiles()).toEqual([]);
  });

  it('[1.10] [9.3] SIGTERM during a download ends the process and leaves no file', async () => {
    server.next.push(hanging(digits).answer);
    const process = start();
    await incomplete(1);
    process.kill('SIGTERM');

    await process.ended;
    expect(await incompleteFiles()).toEqual([]);
    expect(server.requests).toHaveLength(1);
  });

  describeWithCertificate('over https', (certificate) => {
    let secure: ModelServer;
    let trust: string[];

    beforeEach(async () => {
      secure = await new ModelServer(certificate).listen();
      const authority = join(cache.folder, 'authority.pem');
      await writeFile(authority, certificate.ca);
      trust = [`NODE_EXTRA_CA_CERTS=${authority}`];
    });

    afterEach(() => secure.close());

    it('[1.10] With sha256: false any content is accepted and fetched once', async () => {
      secure.add('/any.onnx', digits);
      const any = { file: `${secure.origin}/any.onnx`, sha256: false };

      expect(await start(any, trust).messages('reply')).toEqual([[1, 10]]);
      expect(await start(any, trust).messages('reply')).toEqual([[1, 10]]);
      expect(secure.requests).toEqual(['GET /any.onnx']);
    });

    it('[1.10] With sha256: false weights in another file are fetched beside the model', async () => {
      secure.add('/m/any.onnx', weightsApartModel('weights.bin'));
      secure.add('/m/weights.bin', new Uint8Array(Float32Array.of(1, 2).buffer));
      const failed = start({ file: `${secure.origin}/m/any.onnx`, sha256: false }, trust);

      // The model loads, and has no input "image".
      await expect(failed.messages('reply')).rejects.toThrow(/takes \[x: float32\[batch, 2\]\]/);
      expect(secure.requests).toEqual(['GET /m/any.onnx', 'GET /m/weights.bin']);
    });

    it('[1.10] A redirect to http is followed only for a pinned file', async () => {
      const location = server.origin + file;
      secure.next.push(answering(302, { location }), answering(302, { location }));
      const address = `${secure.origin}/moved.onnx`;
      const loose = start({ file: address, sha256: false }, trust);

      expect(await loose.messages('failed')).toEqual([
        expect.stringContaining(
          `${secure.origin} redirected to ${server.origin}, which is not encrypted`,
        ),
      ]);
      expect(server.requests).toEqual([]);
      const pinned = start({ file: address, sha256: sha256(digits) }, trust);
      expect(await pinned.messages('reply')).toEqual([[1, 10]]);
    });
  });

  const isRoot = process.getuid?.() === 0 && process.platform === 'linux';
  describeUnless(
    isRoot ? missing('mount') : 'It needs root on Linux, to mount a small disk.',
    'on a full disk',
    () => {
      beforeEach(() => {
        execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=200k', 'tmpfs', cache.folder]);
      });

      afterEach(() => {
        execFileSync('umount', [cache.folder]);
      });

      it('[1.10] The boot fails with the folder and the size, and leaves no part of the file', async () => {
        const message = await failureOf(model);

        expect(message).toContain(`The file (${digits.byteLength} bytes) cannot be written to`);
        expect(message).toMatch(/ENOSPC.*; make room or choose another folder with XDG_CACHE_HOME/);
        expect(await incompleteFiles()).toEqual([]);
        expect(server.requests).toHaveLength(1);
      });
    },
  );
});

import { spawn } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { availableParallelism, tmpdir } from 'node:os';
import { join } from 'node:path';
import { mergeMap, Subject } from 'rxjs';
import {
  InvalidInputError,
  OverloadedError,
  RequestTooLargeError,
  ServingUnavailableError,
} from '../../index.js';
import { onAbort } from '../../doors/calls.js';
import { isRecord } from '../../doors/options.js';
import { messageOf } from '../../doors/text.js';

interface AudioLimits {
  readonly owner: string;
  readonly bytes: number;
  readonly seconds: number;
  /** Most bytes of all waiting files and their samples. */
  readonly waiting: number;
}

/** Containers that ffmpeg may read. Others, such as playlists, name further files. */
const FORMATS =
  'wav,w64,mp3,flac,ogg,matroska,webm,mov,mp4,m4a,3gp,aac,aiff,caf,amr,asf,avi,mpeg,mpegts';

/** Milliseconds after which we end a decoder that a file keeps busy. */
const LONGEST_DECODING = 120_000;

/**
 * Seconds of audio in any file, and the least bytes of each further one: codecs write at least 90
 * bytes for a second of silence. Smaller files are made to fill our memory.
 */
const SECONDS_OF_ANY_FILE = 60;
const LEAST_BYTES_OF_A_SECOND = 64;

/** Decodes files by ffmpeg, as Python's pipeline does. */
export class AudioReader {
  /** Jobs, one per core: more programs would gain nothing. */
  private readonly jobs$ = new Subject<() => Promise<void>>();
  private waiting = 0;

  constructor(private readonly limits: AudioLimits) {
    this.jobs$.pipe(mergeMap((job) => job(), availableParallelism())).subscribe();
  }

  /**
   * Samples from -1 to 1, all channels mixed.
   *
   * @param signal ends the work, and drops a waiting file
   * @throws InvalidInputError for a file without audio
   * @throws RequestTooLargeError beyond the limits
   * @throws OverloadedError if too much waits
   * @throws ServingUnavailableError without ffmpeg
   */
  async read(file: Uint8Array, sampleRate: number, signal: AbortSignal): Promise<Float32Array> {
    const { owner, bytes } = this.limits;
    if (file.byteLength > bytes) {
      throw new RequestTooLargeError(
        `${owner} takes files of at most ${bytes} bytes, and was given ${file.byteLength}`,
      );
    }
    const held = new HeldBytes((count) => this.hold(count));
    held.add(file.byteLength);
    try {
      return await new Promise((resolve, reject) => {
        let waiting: Uint8Array | undefined = file;
        const stop = onAbort(signal, (reason) => {
          waiting = undefined;
          reject(reason);
        });
        this.jobs$.next(async () => {
          if (waiting) {
            await this.decode(waiting, sampleRate, signal, held).then(resolve, reject);
          }
          stop();
        });
      });
    } finally {
      held.release();
    }
  }

  private hold(count: number): void {
    const { owner, waiting } = this.limits;
    if (this.waiting + count > waiting) {
      throw new OverloadedError(
        `${owner} has no memory for more audio: files and samples of ${this.waiting} bytes wait, and ` +
          `${waiting} is the most; call again later, or raise queue.maxCost`,
      );
    }
    this.waiting += count;
  }

  /** @throws RequestTooLargeError if it is too long */
  checkLength(samples: number, sampleRate: number): void {
    const { owner, seconds } = this.limits;
    if (samples > seconds * sampleRate) {
      throw new RequestTooLargeError(
        `${owner} takes at most ${seconds} seconds of audio, and was given more; cut it in parts, ` +
          'or raise the option maxSeconds',
      );
    }
  }

  private async decode(
    file: Uint8Array,
    sampleRate: number,
    signal: AbortSignal,
    held: HeldBytes,
  ): Promise<Float32Array> {
    const { owner, seconds } = this.limits;
    const inFile = SECONDS_OF_ANY_FILE + file.byteLength / LEAST_BYTES_OF_A_SECOND;
    const most = Math.min(seconds, inFile);
    const { folder, path } = await this.stored(file);
    try {
      const samples = await this.run(path, sampleRate, most + 1, signal, held);
      this.checkLength(samples.length, sampleRate);
      if (samples.length > most * sampleRate) {
        throw new RequestTooLargeError(
          `${owner} was given a file of ${file.byteLength} bytes with more than ${Math.floor(most)} ` +
            `seconds of audio, and takes ${LEAST_BYTES_OF_A_SECOND} bytes or more for each second ` +
            `after the first ${SECONDS_OF_ANY_FILE}; send it with a usual rate, or less compressed`,
        );
      }
      if (samples.length === 0) {
        throw this.unreadable('it has no audio');
      }
      return samples;
    } finally {
      await rm(folder, { recursive: true, force: true });
    }
  }

  /** Some formats have their index at the end, so ffmpeg must seek. */
  private async stored(file: Uint8Array): Promise<{ folder: string; path: string }> {
    let folder: string | undefined;
    try {
      folder = await mkdtemp(join(tmpdir(), 'nestjs-serving-audio-'));
      const path = join(folder, 'audio');
      await writeFile(path, file);
      return { folder, path };
    } catch (cause) {
      if (folder !== undefined) {
        await rm(folder, { recursive: true, force: true });
      }
      const code = isRecord(cause) ? ` (${String(cause['code'])})` : '';
      throw new ServingUnavailableError(
        `${this.limits.owner} cannot store a file for ffmpeg in the folder of temporary files${code}`,
        { cause },
      );
    }
  }

  private run(
    path: string,
    sampleRate: number,
    seconds: number,
    signal: AbortSignal,
    held: HeldBytes,
  ): Promise<Float32Array> {
    const { owner } = this.limits;
    const input = ['-protocol_whitelist', 'file', '-format_whitelist', FORMATS, '-i', path];
    const output = ['-vn', '-ac', '1', '-ar', String(sampleRate), '-f', 'f32le', 'pipe:1'];
    const most = ['-t', seconds.toFixed(3)];
    const late = AbortSignal.timeout(LONGEST_DECODING);
    const program = spawn(
      'ffmpeg',
      ['-hide_banner', '-nostdin', '-loglevel', 'error', ...input, ...most, ...output],
      {
        stdio: ['ignore', 'pipe', 'pipe'],
        // The option timeout would keep the process alive if the program is missing.
        signal: AbortSignal.any([late, signal]),
        killSignal: 'SIGKILL',
      },
    );
    return new Promise((resolve, reject) => {
      // One second more, since a decoder may end late.
      const mostBytes = Math.ceil((seconds + 1) * sampleRate) * 4;
      // Grows, since a final copy of all samples would hold the event loop. The model's thread
      // shares this memory.
      const samples = new SharedArrayBuffer(0, { maxByteLength: mostBytes });
      let problem = '';
      program.stdout.on('data', (chunk: Buffer) => {
        const begin = samples.byteLength;
        if (begin + chunk.length > mostBytes) {
          program.kill('SIGKILL');
          return;
        }
        try {
          held.add(chunk.length);
          samples.grow(begin + chunk.length);
          new Uint8Array(samples, begin).set(chunk);
        } catch (cause) {
          program.kill('SIGKILL');
          reject(cause);
        }
      });
      program.stderr.on('data', (chunk: Buffer) => {
        problem += problem.length < MOST_OF_REASON ? chunk.toString() : '';
      });
      program.on('error', (cause: NodeJS.ErrnoException) => {
        if (cause.name === 'AbortError') {
          reject(late.aborted ? this.unreadable('it takes too long') : signal.reason);
          return;
        }
        const why =
          cause.code === 'ENOENT' ? 'which is not on the PATH; install it' : messageOf(cause);
        reject(
          new ServingUnavailableError(
            `${owner} decodes files by the program ffmpeg, ${why}, or send samples`,
            { cause },
          ),
        );
      });
      program.on('close', (code) => {
        if (code === 0 || program.killed) {
          resolve(new Float32Array(samples, 0, Math.floor(samples.byteLength / 4)));
        } else {
          reject(this.unreadable(reasonIn(problem)));
        }
      });
    });
  }

  private unreadable(why: string): InvalidInputError {
    return new InvalidInputError(
      `${this.limits.owner} was given bytes that ffmpeg cannot read as audio: ${why}`,
    );
  }
}

class HeldBytes {
  private count = 0;
  private isReleased = false;

  constructor(private readonly hold: (count: number) => void) {}

  /** @throws OverloadedError if all calls hold too many */
  add(count: number): void {
    // A decoder that ends with its call may still write.
    if (!this.isReleased) {
      this.hold(count);
      this.count += count;
    }
  }

  release(): void {
    this.hold(-this.count);
    this.isReleased = true;
  }
}

/** Characters of ffmpeg's messages that we read. */
const MOST_OF_REASON = 2000;

/** Reason in our own words, since ffmpeg prints memory addresses and local paths. */
function reasonIn(problem: string): string {
  if (problem.includes('does not contain any stream')) {
    return 'it has no audio';
  }
  return problem.includes('not on whitelist') || problem.includes('not in whitelist')
    ? 'its format is not allowed here'
    : 'it is damaged, or no recording';
}

import { spawn } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { availableParallelism, tmpdir } from 'node:os';
import { join } from 'node:path';
import { mergeMap, Subject } from 'rxjs';
import { InvalidInputError, RequestTooLargeError, ServingUnavailableError } from '../../index.js';
import { messageOf } from '../../internal.js';

interface AudioLimits {
  /** The serving, for errors. */
  readonly owner: string;
  /** Most bytes of a file. */
  readonly bytes: number;
  /** Most seconds of audio. */
  readonly seconds: number;
}

/** Containers that ffmpeg may read. Others, such as playlists, name further files. */
const FORMATS =
  'wav,w64,mp3,flac,ogg,matroska,webm,mov,mp4,m4a,3gp,aac,aiff,caf,amr,asf,avi,mpeg,mpegts';

/** A decoder that is caught by a file ends after this, in milliseconds. */
const LONGEST_DECODING = 120_000;

/** Decodes files of audio and video by the program ffmpeg, as Python's pipeline does. */
export class AudioReader {
  /** The program takes a core, so more of them at a time gain nothing. */
  private readonly jobs$ = new Subject<() => Promise<void>>();

  constructor(private readonly limits: AudioLimits) {
    this.jobs$.pipe(mergeMap((job) => job(), availableParallelism())).subscribe();
  }

  /**
   * The file's samples from -1 to 1, of all channels mixed.
   *
   * @throws InvalidInputError for a file without audio
   * @throws RequestTooLargeError beyond the limits
   * @throws ServingUnavailableError without ffmpeg
   */
  read(file: Uint8Array, sampleRate: number): Promise<Float32Array> {
    const { owner, bytes } = this.limits;
    if (file.byteLength > bytes) {
      throw new RequestTooLargeError(
        `${owner} takes files of at most ${bytes} bytes, and was given ${file.byteLength}`,
      );
    }
    return new Promise((resolve, reject) => {
      this.jobs$.next(() => this.decode(file, sampleRate).then(resolve, reject));
    });
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

  private async decode(file: Uint8Array, sampleRate: number): Promise<Float32Array> {
    // Some formats have their index at the end, so ffmpeg must be able to seek.
    const folder = await mkdtemp(join(tmpdir(), 'nestjs-serving-audio-'));
    try {
      const path = join(folder, 'audio');
      await writeFile(path, file);
      const bytes = await this.run(path, sampleRate);
      const samples = new Float32Array(Math.floor(bytes.length / 4));
      bytes.copy(new Uint8Array(samples.buffer));
      this.checkLength(samples.length, sampleRate);
      if (samples.length === 0) {
        throw this.unreadable('it has no audio');
      }
      return samples;
    } finally {
      await rm(folder, { recursive: true, force: true });
    }
  }

  private run(path: string, sampleRate: number): Promise<Buffer> {
    const { owner, seconds } = this.limits;
    const input = ['-protocol_whitelist', 'file', '-format_whitelist', FORMATS, '-i', path];
    const output = ['-vn', '-ac', '1', '-ar', String(sampleRate), '-f', 'f32le', 'pipe:1'];
    const most = ['-t', String(seconds + 1)];
    const program = spawn(
      'ffmpeg',
      ['-hide_banner', '-nostdin', '-loglevel', 'error', ...input, ...most, ...output],
      {
        stdio: ['ignore', 'pipe', 'pipe'],
        // The option timeout would keep a process alive in which the program is missing.
        signal: AbortSignal.timeout(LONGEST_DECODING),
        killSignal: 'SIGKILL',
      },
    );
    return new Promise((resolve, reject) => {
      const chunks: Buffer[] = [];
      let problem = '';
      program.stdout.on('data', (chunk: Buffer) => chunks.push(chunk));
      program.stderr.on('data', (chunk: Buffer) => (problem ||= chunk.toString().slice(0, 200)));
      program.on('error', (cause: NodeJS.ErrnoException) => {
        if (cause.name === 'AbortError') {
          reject(this.unreadable('it takes too long'));
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
        if (code === 0) {
          resolve(Buffer.concat(chunks));
        } else {
          reject(this.unreadable(problem.replaceAll(path, 'the file').trim() || `code ${code}`));
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

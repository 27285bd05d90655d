import { Injectable, NotFoundException, NotImplementedException } from '@nestjs/common';
import { readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import type { ServerDuplexStream, ServiceDefinition } from '@grpc/grpc-js';
import { formatValue } from '../../../../doors/text.js';
import type { GrpcPackages } from '../../wire/grpc-service.js';
import { errorAnswer } from '../error-answers.js';
import { read } from './infer-stream.js';

/** Has one of the names. */
interface Question {
  readonly host: string;
  readonly list_services?: string;
  readonly file_by_filename?: string;
  readonly file_containing_symbol?: string;
}

export type ReflectionCall = ServerDuplexStream<Question, object>;

/** Made by protoc: proto-loader's descriptors have names for maps that Go's clients refuse. */
const DESCRIPTORS = {
  'inference.proto': '../../wire/inference.binpb',
  'health.proto': './health.binpb',
};

/** Parts of a symbol's name; ours have up to seven. */
const MOST_PARTS = 16;
const LONGEST_SYMBOL = 1000;

/** Follows https://github.com/grpc/grpc/blob/master/doc/server-reflection.md */
@Injectable()
export class Reflection {
  /** Descriptors by file, service and type. */
  private readonly files = new Map<string, Buffer>();
  private readonly symbols = new Map<string, Buffer>();
  private readonly services: { readonly name: string }[] = [];

  /** The service in both versions. */
  async load(loader: GrpcPackages['loader']): Promise<readonly ServiceDefinition[]> {
    for (const [file, path] of Object.entries(DESCRIPTORS)) {
      const bytes = await readFile(new URL(path, import.meta.url));
      this.files.set(file, bytes);
      const definitions = Object.entries(loader.loadFileDescriptorSetFromBuffer(bytes));
      for (const [name, definition] of definitions) {
        this.symbols.set(name, bytes);
        if (!('format' in definition)) {
          this.services.push({ name });
        }
      }
    }
    const file = fileURLToPath(new URL('./reflection.proto', import.meta.url));
    const definition = await loader.load(file, { keepCase: true });
    const service = definition['grpc.reflection.v1.ServerReflection'] as ServiceDefinition;
    const method = service['ServerReflectionInfo']!;
    const path = method.path.replace('.v1.', '.v1alpha.');
    return [service, { ServerReflectionInfo: { ...method, path } }];
  }

  /** A client that doesn't read its answers delays its own questions. */
  async answer(call: ReflectionCall, stop: AbortSignal): Promise<void> {
    call.on('drain', () => call.resume());
    await read(call, stop, (question) => {
      const reply = { valid_host: question.host, original_request: question };
      if (!call.write({ ...reply, ...this.answerTo(question) })) {
        call.pause();
      }
    });
  }

  private answerTo(question: Question): object {
    const { list_services, file_by_filename: file, file_containing_symbol: symbol } = question;
    if (list_services !== undefined) {
      return { list_services_response: { service: this.services } };
    }
    const name = file ?? symbol;
    if (name === undefined) {
      return failed(
        new NotImplementedException(
          'Ask by list_services, file_by_filename or file_containing_symbol: there are no extensions',
        ),
      );
    }
    const found = file === undefined ? this.declaring(name) : this.files.get(file);
    return found
      ? { file_descriptor_response: found }
      : failed(
          new NotFoundException(
            `There is no ${formatValue(name)}; the files are ${Object.keys(DESCRIPTORS).join(', ')}`,
          ),
        );
  }

  /** Methods, fields and nested types are in the file of what they belong to. */
  private declaring(symbol: string): Buffer | undefined {
    const parts = symbol.slice(0, LONGEST_SYMBOL).split('.', MOST_PARTS);
    const ends = parts.map((_, i) => parts.slice(0, i + 1).join('.')).toReversed();
    const known = ends.find((name) => this.symbols.has(name));
    return known === undefined ? undefined : this.symbols.get(known);
  }
}

function failed(error: Error): object {
  const { grpc, message } = errorAnswer(error);
  return { error_response: { error_code: grpc, error_message: message } };
}

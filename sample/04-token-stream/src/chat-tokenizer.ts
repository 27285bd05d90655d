import { Tokenizer } from '@huggingface/tokenizers';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { TextStream } from './text-stream.js';

/** The part of the tokenizer's file that is of interest here. */
interface TokenizerFile {
  readonly added_tokens: readonly { readonly id: number }[];
}

/** Prompts to tokens and tokens to text. */
export class ChatTokenizer {
  private readonly special: ReadonlySet<number>;

  private constructor(
    private readonly tokenizer: Tokenizer,
    /**
     * Has no special tokens, so that a prompt cannot end its own turn or speak for the assistant.
     */
    private readonly plain: Tokenizer,
    added: TokenizerFile['added_tokens'],
  ) {
    this.special = new Set(added.map(({ id }) => id));
  }

  static async load(folder: string): Promise<ChatTokenizer> {
    const readJson = async (name: string) =>
      JSON.parse(await readFile(join(folder, name), 'utf8')) as unknown;
    const file = (await readJson('tokenizer.json')) as TokenizerFile;
    const config = (await readJson('tokenizer_config.json')) as object;
    return new ChatTokenizer(
      new Tokenizer(file, config),
      new Tokenizer({ ...file, added_tokens: [] }, config),
      file.added_tokens,
    );
  }

  /**
   * A conversation with one question, laid out as the `chat_template` of tokenizer_config.json does
   * it.
   */
  encode(question: string): number[] {
    const turn = (text: string) => [this.idOf('<|im_start|>'), ...this.idsOf(text)];
    const end = [this.end, ...this.idsOf('\n')];
    const system = turn('system\nYou are a helpful assistant');
    return [...system, ...end, ...turn(`user\n${question}`), ...end, ...turn('assistant\n')];
  }

  /** The text of an answer whose tokens come one by one. */
  createTextStream(): TextStream {
    return new TextStream((token) =>
      this.special.has(token) ? undefined : this.tokenizer.id_to_token(token),
    );
  }

  /** The token with which the model ends its answer. */
  get end(): number {
    return this.idOf('<|im_end|>');
  }

  private idOf(token: string): number {
    return this.tokenizer.token_to_id(token)!;
  }

  private idsOf(text: string): number[] {
    return this.plain.encode(text, { add_special_tokens: false }).ids;
  }
}

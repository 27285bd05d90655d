import { join } from 'node:path';
import { expect, it } from '@jest/globals';
import ts from 'typescript';
import { FIELDS } from '../../../lib/extensions/openai/known-fields.js';
import { describeUnless } from '../../fixtures/describe-unless.js';
import { inNode, openAIClientsMissing } from '../../fixtures/http/openai-clients.js';

const OPENAI = 'openai/resources';
const CHAT = `${OPENAI}/chat/completions/completions.d.ts`;
const RESPONSES = `${OPENAI}/responses/responses.d.ts`;
const COHERE = 'cohere-ai/serialization';

/** Of a type of the clients: a file, and the names that lead to the type in it. */
type Source = readonly [file: string, ...names: string[]];

/**
 * The types that the clients of OpenAI and Cohere declare for each kind of request, and the fields
 * that other clients send, or these in other versions.
 */
const KINDS: Readonly<
  Record<
    Exclude<keyof typeof FIELDS, 'teiEmbed' | 'teiRerank' | 'teiPredict' | 'vllmClassify'>,
    { readonly types: readonly Source[]; readonly others: string }
  >
> = {
  chat: {
    types: [[CHAT, 'ChatCompletionCreateParams']],
    // https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html
    others: `add_generation_prompt add_special_tokens best_of chat_template_kwargs
      continue_final_message echo ignore_eos include_stop_str_in_output length_penalty min_p min_tokens
      repetition_penalty skip_special_tokens stop_token_ids top_k use_beam_search`,
  },
  streamOptions: { types: [[CHAT, 'ChatCompletionStreamOptions']], others: '' },
  message: {
    types: [
      [CHAT, 'ChatCompletionMessageParam'],
      // Callers send an answer back as it came.
      [CHAT, 'ChatCompletionMessage'],
    ],
    // LangChain and the AI SDK send the first, OpenAI's clients the second, and vLLM answers with the
    // others.
    others: 'id parsed reasoning reasoning_content',
  },
  part: {
    types: [
      [CHAT, 'ChatCompletionContentPartText'],
      [CHAT, 'ChatCompletionContentPartRefusal'],
      [RESPONSES, 'ResponseInputText'],
      [RESPONSES, 'ResponseOutputText'],
      [RESPONSES, 'ResponseOutputRefusal'],
    ],
    // OpenAI's clients send answers back as they parsed them.
    others: 'parsed',
  },
  tool: { types: [[CHAT, 'ChatCompletionFunctionTool']], others: '' },
  function: {
    types: [
      [`${OPENAI}/shared.d.ts`, 'FunctionDefinition'],
      [RESPONSES, 'FunctionTool'],
    ],
    others: '',
  },
  calledFunction: {
    types: [
      [CHAT, 'ChatCompletionNamedToolChoice', 'Function'],
      [RESPONSES, 'ToolChoiceFunction'],
    ],
    others: '',
  },
  // Streams have the first, and clients send it back.
  pastCall: { types: [[CHAT, 'ChatCompletionMessageFunctionToolCall']], others: 'index' },
  pastFunction: {
    types: [[CHAT, 'ChatCompletionMessageFunctionToolCall', 'Function']],
    others: 'parsed_arguments',
  },
  anyFormat: {
    types: [
      [`${OPENAI}/shared.d.ts`, 'ResponseFormatText'],
      [`${OPENAI}/shared.d.ts`, 'ResponseFormatJSONObject'],
    ],
    others: '',
  },
  schemaFormat: { types: [[`${OPENAI}/shared.d.ts`, 'ResponseFormatJSONSchema']], others: '' },
  format: {
    types: [
      [`${OPENAI}/shared.d.ts`, 'ResponseFormatJSONSchema', 'JSONSchema'],
      [RESPONSES, 'ResponseFormatTextJSONSchemaConfig'],
    ],
    others: '',
  },
  completions: {
    types: [[`${OPENAI}/completions.d.ts`, 'CompletionCreateParams']],
    others: `add_special_tokens ignore_eos include_stop_str_in_output length_penalty metadata min_p
      min_tokens repetition_penalty response_format safety_identifier service_tier
      skip_special_tokens stop_token_ids store top_k use_beam_search`,
  },
  responses: {
    types: [[RESPONSES, 'ResponseCreateParams']],
    // A response has it.
    others: 'max_tool_calls',
  },
  responseText: { types: [[RESPONSES, 'ResponseTextConfig']], others: '' },
  responseStreamOptions: {
    types: [[RESPONSES, 'ResponseCreateParams', 'StreamOptions']],
    others: '',
  },
  responseMessage: {
    types: [
      [RESPONSES, 'EasyInputMessage'],
      [RESPONSES, 'ResponseInputItem', 'Message'],
      [RESPONSES, 'ResponseOutputMessage'],
    ],
    others: '',
  },
  responseCall: { types: [[RESPONSES, 'ResponseFunctionToolCall']], others: 'parsed_arguments' },
  responseResult: { types: [[RESPONSES, 'ResponseInputItem', 'FunctionCallOutput']], others: '' },
  embeddings: {
    types: [[`${OPENAI}/embeddings.d.ts`, 'EmbeddingCreateParams']],
    // input_type is Cohere's and NVIDIA's. All kinds share those about the request.
    others: 'input_type metadata safety_identifier service_tier store',
  },
  cohereEmbed: {
    types: [
      [`${COHERE}/resources/v2/client/requests/V2EmbedRequest.d.ts`, 'V2EmbedRequest', 'Raw'],
    ],
    others: '',
  },
  ollamaEmbed: { types: [['ollama/dist/browser.d.ts', 'EmbedRequest']], others: '' },
  rerank: {
    types: [
      [`${COHERE}/resources/v2/client/requests/V2RerankRequest.d.ts`, 'V2RerankRequest', 'Raw'],
      [`${COHERE}/client/requests/RerankRequest.d.ts`, 'RerankRequest', 'Raw'],
    ],
    others: 'metadata safety_identifier service_tier store user',
  },
  transcriptions: {
    types: [[`${OPENAI}/audio/transcriptions.d.ts`, 'TranscriptionCreateParams']],
    others: 'metadata safety_identifier service_tier store user',
  },
  translations: {
    types: [[`${OPENAI}/audio/translations.d.ts`, 'TranslationCreateParams']],
    // Those of transcriptions.
    others: `chunking_strategy include known_speaker_names known_speaker_references language metadata
      safety_identifier service_tier store stream timestamp_granularities user`,
  },
};

/** The fields of the types, and of each member of a union. */
function fieldsOf(sources: readonly Source[]): ReadonlySet<string> {
  const paths = sources.map(([file]) => join(inNode, 'node_modules', file));
  const program = ts.createProgram(paths, {
    module: ts.ModuleKind.NodeNext,
    skipLibCheck: true,
    types: [],
  });
  const checker = program.getTypeChecker();
  const fields = sources.flatMap(([, ...names], i) => {
    const file = checker.getSymbolAtLocation(program.getSourceFile(paths[i]!)!)!;
    const symbol = names.reduce(
      (within, name) => checker.getExportsOfModule(within).find((each) => each.name === name)!,
      file,
    );
    const type = checker.getDeclaredTypeOfSymbol(symbol);
    return (type.isUnion() ? type.types : [type]).flatMap((each) => each.getProperties());
  });
  return new Set(fields.map(({ name }) => name));
}

describeUnless(openAIClientsMissing, "Fields that the clients' types declare", () => {
  it.each(Object.entries(KINDS))(
    '[FQ11] Each field of the clients is known: %s',
    (kind, { types, others }) => {
      const theirs = fieldsOf(types);
      const ours = Object.keys(FIELDS[kind as keyof typeof FIELDS]);

      expect(theirs.size).toBeGreaterThan(0);
      expect([...theirs].filter((field) => !ours.includes(field))).toEqual([]);
      expect(ours.filter((field) => !theirs.has(field)).toSorted()).toEqual(
        others.split(/\s+/).filter((field) => field !== ''),
      );
    },
  );
});

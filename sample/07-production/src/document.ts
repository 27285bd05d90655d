import { applyDecorators, type INestApplication, type Type } from '@nestjs/common';
import {
  ApiBadRequestResponse,
  ApiGatewayTimeoutResponse,
  ApiOkResponse,
  ApiOperation,
  ApiSecurity,
  ApiServiceUnavailableResponse,
  ApiUnauthorizedResponse,
  DocumentBuilder,
  SwaggerModule,
} from '@nestjs/swagger';
import { apiKeyHeader } from './api-key.guard.js';

interface ClassificationDocument {
  readonly summary: string;
  readonly type: Type | [Type];
}

/** Documents the answers of a route that classifies. */
export function ApiClassification({ summary, type }: ClassificationDocument): MethodDecorator {
  return applyDecorators(
    ApiSecurity(apiKeyHeader),
    ApiOperation({ summary }),
    ApiOkResponse({ type }),
    ApiBadRequestResponse({ description: 'The body is invalid.' }),
    ApiUnauthorizedResponse({ description: 'There is no valid API key.' }),
    ApiServiceUnavailableResponse({
      description: 'Too many tickets wait, or the application shuts down. Try again later.',
      headers: {
        'Retry-After': {
          description: 'Seconds to wait, where known.',
          schema: { type: 'integer' },
        },
      },
    }),
    ApiGatewayTimeoutResponse({ description: 'There was no answer within the timeout.' }),
  );
}

/** Serves the OpenAPI document of the application at /docs and /docs-json. */
export function serveDocument(app: INestApplication): void {
  const config = new DocumentBuilder()
    .setTitle('Ticket desk')
    .setVersion('1')
    .addApiKey({ type: 'apiKey', in: 'header', name: apiKeyHeader }, apiKeyHeader)
    .build();
  SwaggerModule.setup('docs', app, () => SwaggerModule.createDocument(app, config));
}

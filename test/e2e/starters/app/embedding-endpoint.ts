// #region endpoint
// src/main.ts
import { Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { ServingModule } from 'nestjs-serving';
import { OpenAIModule } from 'nestjs-serving/openai';
import { textEmbedding } from 'nestjs-serving/tasks';

const embedder = textEmbedding({
  name: 'embedder',
  model: 'hf:sentence-transformers/all-MiniLM-L6-v2',
});

@Module({
  imports: [
    ServingModule.forRoot({ servings: [embedder] }),
    OpenAIModule.forRoot({ models: { embedder }, guards: [] }), // Without guards: for this machine alone.
  ],
})
class AppModule {}

NestFactory.create(AppModule)
  .then((app) => app.listen(process.env.PORT ?? 3000))
  .catch((error: unknown) => {
    console.error(error);
    process.exit(1);
  });
// #endregion

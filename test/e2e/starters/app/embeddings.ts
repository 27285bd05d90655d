// #region embeddings
// src/main.ts
import { Body, Controller, Module, Post } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { InjectServing, ServingModule, type ServingOf } from 'nestjs-serving';
import { textEmbedding } from 'nestjs-serving/tasks';

const embedder = textEmbedding({
  name: 'embedder',
  model: 'hf:sentence-transformers/all-MiniLM-L6-v2',
});

@Controller('embed')
class EmbedController {
  constructor(@InjectServing(embedder) private readonly serving: ServingOf<typeof embedder>) {}

  @Post()
  async embed(@Body('text') text: string) {
    const { vector } = await this.serving.batchedRun(text);
    return { vector: [...vector] };
  }
}

@Module({
  imports: [ServingModule.forRoot({ servings: [embedder] })],
  controllers: [EmbedController],
})
class AppModule {}

NestFactory.create(AppModule)
  .then((app) => app.listen(process.env.PORT ?? 3000))
  .catch((error: unknown) => {
    console.error(error);
    process.exit(1);
  });
// #endregion

import { ConfigurableModuleBuilder, Module } from '@nestjs/common';
import { ModulesContainer } from '@nestjs/core';
import { checkedModule, refuseSecond } from '../../doors/options.js';
import { boardController, BoardGuards, ChangeGuards } from './board.controller.js';
import { OWNER, resolvePath, rules, type ServingBoardOptions } from './options.js';
import { BOARD_OPTIONS, BOARD_PATH, ServingBoard } from './serving-board.js';

const { ConfigurableModuleClass } = new ConfigurableModuleBuilder<ServingBoardOptions>({
  moduleName: 'ServingBoard',
  optionsInjectionToken: BOARD_OPTIONS,
})
  .setClassMethodName('forRoot')
  .setExtras({ path: 'servings' }, (definition, extras) => {
    const path = resolvePath(extras.path);
    return {
      ...definition,
      controllers: [boardController(path)],
      providers: [...(definition.providers ?? []), { provide: BOARD_PATH, useValue: path }],
    };
  })
  .build();

/**
 * Live page about the application's servings: throughput, batches, queues, partitions and versions.
 * With the option `changes`, users can also change them. Import it next to `ServingModule`, once
 * for each path. Its `path` is `servings` by default.
 */
@Module({ providers: [ServingBoard, BoardGuards, ChangeGuards] })
export class ServingBoardModule extends checkedModule(ConfigurableModuleClass, OWNER, rules, [
  'path',
]) {
  constructor(modules: ModulesContainer) {
    super();
    refuseSecond(modules, ServingBoardModule, OWNER, BOARD_PATH);
  }
}

/** What is needed of the builder that `Test.createTestingModule` of `@nestjs/testing` gives. */
export interface TestingBuilder {
  overrideProvider(token: unknown): {
    useFactory(options: { factory: (...dependencies: never[]) => unknown; inject?: unknown[] }): unknown;
    useValue(value: unknown): unknown;
  };
}

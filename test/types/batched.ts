import { expectTypeOf } from 'expect-type';
import { asCaller, Batched } from 'nestjs-serving';

class ScoreDto {
  readonly score!: number;
}

class Fields {
  readonly fields!: readonly string[];
}

/** What a batched method may look like. */
class Scorer {
  @Batched()
  bare(rows: string[]): number[] {
    return rows.map((row) => row.length);
  }

  @Batched({ types: [ScoreDto, String, Number, Boolean, Object], batchSize: 8 })
  async typed(
    bodies: readonly ScoreDto[],
    names: string[],
    _ranks: number[],
    _flags: boolean[],
    _rest: { readonly any: unknown }[],
  ): Promise<(ScoreDto | Error)[]> {
    return bodies.map((body, i) => (names[i] ? body : new Error('no name')));
  }

  @Batched({ types: [Fields] })
  structural(rows: { readonly fields: readonly string[] }[]): readonly number[] {
    return rows.map(({ fields }) => fields.length);
  }

  @Batched({ types: [String, String] })
  optional(rows: string[], _marks?: string[]): string[] {
    return rows;
  }

  @Batched()
  without(): string[] {
    return [];
  }

  @Batched('digits')
  prepare(image: Uint8Array): number[] {
    return [...image];
  }
}

const scorer = asCaller(new Scorer());
expectTypeOf(scorer.bare).toEqualTypeOf<(row: string) => Promise<number>>();
expectTypeOf(scorer.typed).returns.toEqualTypeOf<Promise<ScoreDto>>();
expectTypeOf(scorer.structural).parameters.toEqualTypeOf<
  [{ readonly fields: readonly string[] }]
>();

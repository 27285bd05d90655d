import type { Type } from '@nestjs/common';
import type { Mistake } from '../../core/definition/inferred-types.js';

/** {@link BatchMistakes} checks its parameters and result. */
export type AnyMethod = (...columns: never[]) => unknown;

export type BatchMethodDecorator<Types> = <Method extends AnyMethod>(
  target: object,
  key: string | symbol,
  descriptor: TypedPropertyDescriptor<Method> & BatchMistakes<Method, Types>,
) => void;

/** The first mistake in a batched method, as a type that no descriptor has. */
type BatchMistakes<Method extends AnyMethod, Types> =
  false extends AreLists<Parameters<Method>>
    ? Mistake<'@Batched(): each parameter of the method is a list, with an entry per caller'>
    : false extends IsList<Awaited<ReturnType<Method>>>
      ? Mistake<'@Batched(): the method returns a list, or a promise of one, with a result per caller'>
      : Types extends readonly Type[]
        ? WrongTypes<Parameters<Method>, Types>
        : unknown;

type AreLists<Columns extends readonly unknown[]> = {
  [Index in keyof Columns]: IsList<Columns[Index]>;
}[number];

/** A parameter may be optional. */
type IsList<Value> = Exclude<Value, undefined> extends readonly unknown[] ? true : false;

type WrongTypes<
  Columns extends readonly unknown[],
  Types extends readonly Type[],
> = Required<Columns>['length'] extends Types['length']
  ? false extends AreTypes<Required<Columns>, Types>
    ? Mistake<'@Batched({ types }): each type is the class of the entries of its parameter'>
    : unknown
  : Mistake<'@Batched({ types }): give one type for each parameter'>;

type AreTypes<Columns extends readonly unknown[], Types extends readonly Type[]> = {
  [Index in keyof Columns]: Index extends keyof Types
    ? Columns[Index] extends readonly (infer Entry)[]
      ? IsType<Entry, Types[Index]>
      : true
    : true;
}[number];

/** `Object` stands for values that pipes don't check. */
type IsType<Entry, Class> = Class extends ObjectConstructor
  ? true
  : [ValueOf<Class>] extends [Entry]
    ? true
    : false;

type ValueOf<Class> = Class extends StringConstructor
  ? string
  : Class extends NumberConstructor
    ? number
    : Class extends BooleanConstructor
      ? boolean
      : Class extends new (...args: never[]) => infer Instance
        ? Instance
        : never;

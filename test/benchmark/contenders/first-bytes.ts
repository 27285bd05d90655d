import { Tensor } from 'nestjs-serving';

/** A module that gives 8 bytes for each row. */
export default function firstBytes(): (rows: { readonly x: Tensor }) => { readonly y: Tensor } {
  return ({ x }) => {
    const count = 8 * x.dims[0]!;
    return { y: new Tensor('uint8', (x.data as Uint8Array).slice(0, count), [x.dims[0]!, 8]) };
  };
}

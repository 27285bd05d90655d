/** The one request that a load repeats. */
export interface Post {
  readonly path: string;
  readonly type: string;
  readonly body: Uint8Array;
}

/** A module whose batches come back as they are. */
export default function echo(): (rows: unknown) => unknown {
  return (rows) => rows;
}

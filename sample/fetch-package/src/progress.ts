const width = 30;
const mega = (bytes: number) => (bytes / 1e6).toFixed(1);

/**
 * Passes chunks on and shows how far they are: one moving bar on a terminal, a line per quarter in
 * a log.
 */
export async function* withProgress(
  chunks: AsyncIterable<Uint8Array>,
  label: string,
  total: number,
  out: NodeJS.WriteStream = process.stderr,
): AsyncGenerator<Uint8Array> {
  const steps = out.isTTY ? width : 4;
  let received = 0;
  let shown = -1;

  for await (const chunk of chunks) {
    yield chunk;
    received += chunk.length;
    // Without a length from the server the bar stays empty.
    const step = Math.floor((received / (total || Infinity)) * steps);
    if (step !== shown) {
      const amount = `${mega(received)} of ${total ? mega(total) : '?'} MB`;
      out.write(
        out.isTTY
          ? `\r${label} [${'='.repeat(step).padEnd(width)}] ${amount}`
          : `${label}: ${amount}\n`,
      );
      shown = step;
    }
  }
  if (out.isTTY) {
    out.write('\n');
  }
}

/** The script of a partition's thread; a module of its own so that bundlers and test runners can map it. */
export const threadUrl = new URL('./thread.entry.js', import.meta.url);

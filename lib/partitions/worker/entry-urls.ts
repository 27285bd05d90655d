/**
 * The scripts of a partition's thread and process; a module of its own so that bundlers and test
 * runners can map it.
 */
export const threadUrl = new URL('./thread.entry.js', import.meta.url);
export const processUrl = new URL('./process.entry.js', import.meta.url);

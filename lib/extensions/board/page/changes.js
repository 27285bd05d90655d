import { element, shown } from './elements.js';

/** What the user is asked before a change that callers notice. */
const QUESTIONS = {
  pause: ({ serving }) => `Pause ${serving}? Its calls wait until it is resumed, or time out.`,
  drain: ({ serving, calls }) =>
    `Drain ${serving}? All new calls fail until it is resumed: ${shown(calls)} a second now.`,
  reload: ({ serving }) => `Load the model of ${serving} again? Calls go on meanwhile.`,
  promote: ({ version, serving }) => `Give version ${version} all calls of ${serving}?`,
  rollback: ({ version, serving }) => `Give version ${version} of ${serving} no more calls?`,
};
const YES = {
  pause: 'Pause',
  drain: 'Drain',
  reload: 'Reload',
  promote: 'Promote',
  rollback: 'Roll back',
};
/** Of the button that makes the change. */
const CLASSES = { drain: 'strong danger' };
const DONE = {
  pause: 'was paused',
  drain: 'was drained',
  resume: 'was resumed',
  batchSize: 'has another batch size',
  batchTimeout: 'has another batch timeout',
  reload: 'was reloaded',
  promote: 'has another active version',
  rollback: 'was rolled back',
};

/**
 * Whether the user wants the change. Each question has its own dialog: browsers report that a dialog
 * was closed only after a while, when the next question may be open.
 */
export function ask(body) {
  const question = QUESTIONS[body.change]?.(body);
  if (!question) {
    return Promise.resolve(true);
  }
  const dialog = element(
    'dialog',
    { 'aria-label': question },
    element(
      'form',
      { method: 'dialog' },
      element('p', {}, question),
      element('button', { value: 'no' }, 'Cancel'),
      element(
        'button',
        { value: 'yes', class: CLASSES[body.change] ?? 'strong' },
        YES[body.change],
      ),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) =>
    dialog.addEventListener('close', () => {
      dialog.remove();
      resolve(dialog.returnValue === 'yes');
    }),
  );
}

/** Sends the change. Resolves with what was `done`, or why it was `refused`. */
export async function makeChange(body) {
  try {
    const response = await fetch('changes', {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'x-serving-board': '1' },
      body: JSON.stringify(body),
    });
    if (response.ok) {
      return { done: `${body.serving} ${DONE[body.change]}` };
    }
    const { message } = await response.json().catch(() => ({}));
    return { refused: message ?? `The server answered with ${response.status}` };
  } catch {
    return { refused: 'The server did not answer; the change may have been made' };
  }
}

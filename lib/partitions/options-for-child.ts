/** What says what to run, and how to debug it. */
const OF_THE_PARENT = /^(?:--(?:input-type|eval|print|check|interactive|test|watch|inspect|debug|env-file)|-[epci])/;

/** Of the options that Node was started with those that hold for a child, too. */
export function optionsForChild(options: readonly string[]): string[] {
  const [, kept] = options.reduce<[boolean, string[]]>(
    ([drops, sofar], option) => {
      // What does not start with a dash is the value of the option before it.
      const dropped = option.startsWith('-') ? OF_THE_PARENT.test(option) : drops;
      return [dropped, dropped ? sofar : [...sofar, option]];
    },
    [false, []],
  );
  // An inspector that the environment asks for finds the port of the parent taken.
  return [...kept, '--inspect-port=0'];
}

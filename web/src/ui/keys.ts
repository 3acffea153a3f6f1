/**
 * A listener for keys that leaves those to an input method that are its own, such as the Enter that confirms a word in
 * Japanese. Safari tells these by their code only.
 */
export const onKeys =
  <E extends KeyboardEvent>(listener: (event: E) => void) =>
  (event: E): void => {
    if (!event.isComposing && event.keyCode !== 229) listener(event);
  };

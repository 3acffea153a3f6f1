/** Headers are ASCII; other letters are written as JSON spells them. */
export const toAscii = (text: string): string =>
  text.replace(/[^ -~]/g, letter => `\\u${letter.charCodeAt(0).toString(16).padStart(4, '0')}`);

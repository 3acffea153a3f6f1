/** Formulas as MathML, by temml. Loaded when an answer has its first formula. */
import temml from 'temml';
import 'temml/dist/Temml-Local.css';

/** Shows a formula in an element. False, and nothing is shown, if it is not valid. */
export function typeset(tex: string, element: HTMLElement, isDisplay: boolean): boolean {
  try {
    // As nodes, not HTML. Without `trust` a formula has no links, images or styles of its own.
    temml.render(tex, element, { displayMode: isDisplay, throwOnError: true, trust: false, maxSize: [10, 100] });
    // Labels become ids, which could take the place of the page's own.
    for (const labeled of element.querySelectorAll('[id]')) labeled.removeAttribute('id');
    return true;
  } catch {
    element.replaceChildren();
    return false;
  }
}

// Elements of the page. They are made from text and never from markup, so a title with tags is shown as text.

const SVG = "http://www.w3.org/2000/svg";

/** Make an element with attributes, listeners (`onclick`, ...) and children. Null, false and undefined are left out. */
export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** Make an SVG element, as `el`. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== false && child !== undefined));
  return node;
}

export const byId = (id) => document.getElementById(id);

let made = 0;
/** Return a new id for an element to which another element refers. */
export const newId = (prefix) => `${prefix}-${(made += 1)}`;

/** Put text into a live region, so that a screen reader reads it aloud even if the text has not changed. */
export function say(region, text) {
  region.textContent = "";
  requestAnimationFrame(() => (region.textContent = text));
}

/** Make a button that copies the text of `source`, or selects it if the browser forbids copying. */
export function copyButton(source, what) {
  const button = el("button", { type: "button", class: "quiet", "aria-label": `Copy ${what}` }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(source.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(source);
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  return button;
}

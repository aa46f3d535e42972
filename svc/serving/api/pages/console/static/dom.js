// Elements are made from text, never from markup: whatever a title says stays text.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes, listeners (`onclick`, ...) and children; null, false and undefined ones are left out. */
export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
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
/** An id for an element that another one points to. */
export const newId = (prefix) => `${prefix}-${(made += 1)}`;

/** Put text into a live region so that a screen reader says it, even when it is the same text again. */
export function say(region, text) {
  region.textContent = "";
  requestAnimationFrame(() => (region.textContent = text));
}

/** A button that copies the text of `source`; where the browser forbids that, it selects the text. */
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

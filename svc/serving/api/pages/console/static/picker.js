// A search field that collects several choices: an ARIA combobox with a list below it and the choices as chips.

import { el, newId, say } from "./dom.js";

const WAIT_MS = 150;

/**
 * `search(text, signal)` gives `{options: [{value, text, note}], more}`. `changed()` is called after each choice.
 * `own` says how to call typed text that is no option, or null where only options may be chosen.
 * `values()` are the choices in their order; `node` is the whole.
 */
export function picker({ label, hint, search, changed, own }) {
  const ids = { input: newId("pick"), list: newId("list"), hint: newId("hint") };
  const input = el("input", {
    id: ids.input, type: "text", role: "combobox", autocomplete: "off", spellcheck: "false", "aria-autocomplete": "list",
    "aria-expanded": "false", "aria-controls": ids.list, "aria-describedby": ids.hint, maxlength: "256",
  });
  const list = el("ul", { id: ids.list, role: "listbox", "aria-label": label, hidden: true });
  const chips = el("ul", { class: "chips", "aria-label": `Chosen: ${label}` });
  const said = el("p", { class: "unseen", role: "status" });
  const chosen = [];
  let options = [];
  let active = -1;
  let asked = null;
  let timer = 0;

  function close() {
    clearTimeout(timer);
    asked?.abort();
    list.hidden = true;
    active = -1;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  }

  function mark(place) {
    active = options.length ? (place + options.length) % options.length : -1;
    [...list.children].forEach((node, at) => node.setAttribute("aria-selected", String(at === active)));
    const node = list.children[active];
    if (!node) return input.removeAttribute("aria-activedescendant");
    input.setAttribute("aria-activedescendant", node.id);
    node.scrollIntoView({ block: "nearest" });
  }

  function choose(option) {
    if (!chosen.some((one) => one.value === option.value)) chosen.push(option);
    input.value = "";
    close();
    showChips();
    say(said, `${option.text} chosen`);
    changed();
  }

  function drop(place) {
    const [gone] = chosen.splice(place, 1);
    showChips();
    say(said, `${gone.text} removed`);
    input.focus();
    changed();
  }

  function showChips() {
    chips.replaceChildren(...chosen.map((one, place) => el("li", {}, el("button",
      { type: "button", class: "chip", onclick: () => drop(place) },
      one.text, el("span", { "aria-hidden": "true" }, " ×"), el("span", { class: "unseen" }, " remove")))));
  }

  function show(found, more) {
    options = found.filter((option) => !chosen.some((one) => one.value === option.value));
    const text = input.value.trim();
    if (own && text && !options.some((option) => option.value === text)) options.push({ value: text, text, note: own });
    list.replaceChildren(...options.map((option) => el("li", {
      id: newId("option"), role: "option", "aria-selected": "false",
      onpointerdown: (event) => event.preventDefault(), onclick: () => choose(option),
    }, el("span", {}, option.text), option.note && el("small", {}, option.note))));
    list.hidden = !options.length;
    input.setAttribute("aria-expanded", String(!list.hidden));
    mark(text && options.length ? 0 : -1);
    say(said, options.length ? `${options.length} to choose from${more ? ", type more to see others" : ""}` : "Nothing found");
  }

  async function look() {
    asked?.abort();
    asked = new AbortController();
    const { signal } = asked;
    try {
      const { options: found, more } = await search(input.value.trim(), signal);
      if (!signal.aborted && document.activeElement === input) show(found, more);
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    }
  }

  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(look, WAIT_MS);
  });
  input.addEventListener("blur", close);
  input.addEventListener("click", () => list.hidden && look());
  input.addEventListener("keydown", (event) => {
    const open = !list.hidden;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (open) mark(event.key === "ArrowDown" ? active + 1 : active < 0 ? -1 : active - 1);
      else look();
    } else if (event.key === "Enter" && open && active >= 0) {
      event.preventDefault();
      choose(options[active]);
    } else if (event.key === "Escape" && open) {
      event.preventDefault();
      close();
    } else if (event.key === "Backspace" && !input.value && chosen.length) {
      drop(chosen.length - 1);
    }
  });

  const node = el("div", { class: "field picker" },
    el("label", { for: ids.input }, label), chips, el("div", { class: "anchor" }, input, list),
    el("p", { id: ids.hint, class: "hint" }, hint), said);
  return { node, values: () => chosen.map((one) => one.value) };
}

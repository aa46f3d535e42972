// A search field for several choices: an ARIA combobox, a list of options below it, and a chip for each choice.

import { el, newId, say } from "./dom.js";

const WAIT_MS = 150;

/**
 * Return `node` to show, `values()` with the chosen values in their order, and `names()` with their texts by value.
 *
 * `search(text, signal)` returns `{options: [{value, text, note}], more}`. `changed()` is called after each change.
 * `own` is the note beside typed text that is no option. Without `own`, only options can be chosen.
 * With `ordered`, a choice is moved by dragging it, by its two buttons, or by the arrow keys while it has the focus.
 */
export function picker({ label, hint, search, changed, own, ordered = false }) {
  const ids = { input: newId("pick"), list: newId("list"), hint: newId("hint") };
  const input = el("input", {
    id: ids.input, type: "text", role: "combobox", autocomplete: "off", spellcheck: "false", "aria-autocomplete": "list",
    "aria-expanded": "false", "aria-controls": ids.list, "aria-describedby": ids.hint, maxlength: "256",
  });
  const list = el("ul", { id: ids.list, role: "listbox", "aria-label": label, hidden: true });
  const chips = el(ordered ? "ol" : "ul", { class: ordered ? "chips ordered" : "chips", "aria-label": `Chosen: ${label}` });
  const said = el("p", { class: "unseen", role: "status" });
  const chosen = [];
  let dragged = null;
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
    chips.replaceChildren(...chosen.map((one, place) => {
      const chip = el("button", { type: "button", class: "chip", onclick: () => drop(place) },
        one.text, el("span", { "aria-hidden": "true" }, " ×"), el("span", { class: "unseen" }, " remove"));
      return ordered && chosen.length > 1 ? movable(chip, one, place) : el("li", {}, chip);
    }));
  }

  function movable(chip, one, place) {
    const step = (sign, to, word) => el("button", { type: "button", class: "step", disabled: !chosen[to], "aria-label": `Move ${one.text} ${word}`,
      onclick: () => move(place, to, `.step:nth-of-type(${word === "earlier" ? 1 : 3})`) }, sign);
    chip.setAttribute("aria-keyshortcuts", "ArrowLeft ArrowRight");
    return el("li", {
      draggable: "true",
      ondragstart: (event) => {
        dragged = place;
        event.dataTransfer.effectAllowed = "move";
        event.dataTransfer.setData("text/plain", one.value);
      },
      ondragend: () => { dragged = null; },
      ondragover: (event) => dragged !== null && event.preventDefault(),
      ondrop: (event) => {
        event.preventDefault();
        if (dragged !== null) move(dragged, place, ".chip");
      },
      onkeydown: (event) => {
        const to = { ArrowLeft: place - 1, ArrowRight: place + 1 }[event.key];
        if (to === undefined) return;
        event.preventDefault();
        move(place, to, ".chip");
      },
    }, step("‹", place - 1, "earlier"), chip, step("›", place + 1, "later"));
  }

  function move(from, to, focused) {
    if (!chosen[to] || from === to) return;
    const [moved] = chosen.splice(from, 1);
    chosen.splice(to, 0, moved);
    showChips();
    const wanted = chips.children[to].querySelector(focused);
    (wanted.disabled ? chips.children[to].querySelector(".chip") : wanted).focus();
    say(said, `${moved.text} is now ${to + 1} of ${chosen.length}`);
    changed();
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
  return { node, values: () => chosen.map((one) => one.value), names: () => new Map(chosen.map((one) => [one.value, one.text])) };
}

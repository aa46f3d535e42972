// The part of the form for filters, reasons and diversity.

import { el, newId } from "./dom.js";
import { featureForm } from "./features.js";

/**
 * Return `node` to show, and `values()`, which returns the chosen fields of the request.
 * `fields` are the recipe's filter fields. `changed()` is called after each choice of a label.
 */
export function narrowing(fields, changed) {
  const labels = fields.filter((field) => field.kind !== "numerical");
  const picked = featureForm(labels.map((field) => ({ ...field, kind: "multi_label", n_values: field.values.length })), changed);
  const ranges = fields.filter((field) => field.kind === "numerical").map(range);
  const why = el("input", { type: "checkbox", checked: true });
  const diversity = el("input", { id: newId("diversity"), type: "range", min: "0", max: "1", step: "0.1", value: "0",
    oninput: () => (chosen.textContent = diversity.value) });
  const chosen = el("output", { for: diversity.id }, "0");
  const conditions = () => [
    ...Object.entries(picked.values()).map(([name, values]) => ({ [name]: { any: values } })),
    ...ranges.map((one) => one.condition()).filter(Boolean),
  ];
  const node = el("details", { class: "field" }, el("summary", {}, "Filters, reasons and diversity"),
    fields.length ? null : el("p", { class: "hint" }, "The recipe declares no filter_fields."),
    picked.node, ranges.map((one) => one.node),
    el("label", { class: "box plain" }, why, el("span", {}, "Say why each item is there")),
    el("div", { class: "field" }, el("label", { for: diversity.id }, "Diversity, from 0 to 1"), el("div", { class: "beside" }, diversity, chosen),
      el("p", { class: "hint" }, "Above 0 the page without it stands beside it.")));
  return { node, values: () => {
    const all = conditions();
    return {
      ...(all.length && { filter: all.length === 1 ? all[0] : { all } }),
      ...(why.checked && { explain: 3 }),
      ...(Number(diversity.value) > 0 && { diversity: Number(diversity.value) }),
    };
  } };
}

function range(field) {
  const [from, to] = ["from", "to"].map((word) => el("input", { id: newId("range"), type: "number", step: "any",
    placeholder: `${word} ${word === "from" ? field.min : field.max}`, "aria-label": `${field.name} ${word}` }));
  return {
    node: el("fieldset", { class: "field" }, el("legend", {}, field.name), el("div", { class: "beside" }, from, to)),
    condition: () => {
      const bounds = { ...(from.value !== "" && { gte: Number(from.value) }), ...(to.value !== "" && { lte: Number(to.value) }) };
      return Object.keys(bounds).length ? { [field.name]: bounds } : null;
    },
  };
}

// A form made from the feature columns that a model declares.

import { el, newId } from "./dom.js";
import { picker } from "./picker.js";

const FEW = 16;

/** Return `node` to show, and `values()`, which returns the filled-in features in the form of the API. */
export function featureForm(columns, changed) {
  const fields = columns.map((column) => field(column, changed));
  return {
    node: el("div", { class: "features" }, fields.map((one) => one.node)),
    values: () => Object.fromEntries(fields.map((one) => [one.name, one.value()]).filter(([, value]) => value !== undefined)),
  };
}

function field(column, changed) {
  const made = column.kind === "numerical" ? numberField(column) : column.kind === "text" ? textField(column)
    : column.kind === "vector" ? vectorField(column)
    : column.kind === "multi_label" ? labelsField(column, changed) : oneField(column);
  made.node.addEventListener("input", changed);
  return { name: column.name, ...made };
}

const short = (value) => value.toLocaleString("en", { maximumSignificantDigits: 6, useGrouping: false });

function numberField(column) {
  const id = newId("feature");
  const input = el("input", { id, type: "number", step: "any", "aria-describedby": `${id}-hint` });
  const range = column.low === undefined ? "a number"
    : `training saw ${short(column.low)} to ${short(column.high)}, ${short(column.mean)} on average`;
  return {
    node: labelled(column.name, input, range),
    value: () => (input.value === "" ? undefined : Number(input.value)),
  };
}

function textField(column) {
  const id = newId("feature");
  const input = el("textarea", { id, rows: "2", "aria-describedby": `${id}-hint` });
  return { node: labelled(column.name, input, `a text; the model knows ${column.n_words} words`), value: () => input.value || undefined };
}

function vectorField(column) {
  const id = newId("feature");
  const input = el("input", { id, type: "text", autocomplete: "off", "aria-describedby": `${id}-hint` });
  const hint = `${column.dimensions} numbers with ${column.delimiter} between them`;
  return { node: labelled(column.name, input, hint), value: () => input.value || undefined };
}

function oneField(column) {
  const id = newId("feature");
  const all = column.values.length === column.n_values;
  const hint = all ? null : `one of ${column.n_values} values`;
  const described = hint && `${id}-hint`;
  if (all && column.n_values) {
    const select = el("select", { id }, el("option", { value: "" }, "not given"),
      column.values.map((value) => el("option", { value }, value)));
    return { node: labelled(column.name, select, hint), value: () => select.value || undefined };
  }
  const list = el("datalist", { id: newId("values") }, column.values.map((value) => el("option", { value })));
  const input = el("input", { id, type: "text", list: list.id, autocomplete: "off", "aria-describedby": described });
  const node = labelled(column.name, input, hint);
  node.append(list);
  return { node, value: () => input.value || undefined };
}

function labelsField(column, changed) {
  if (column.values.length !== column.n_values || column.n_values > FEW) return pickedLabels(column, changed);
  const boxes = column.values.map((value) => el("input", { type: "checkbox", value }));
  const node = el("fieldset", { class: "field" }, el("legend", {}, column.name), el("div", { class: "boxes" },
    boxes.map((box) => el("label", { class: "box" }, box, el("span", {}, box.value)))));
  return { node, value: () => given(boxes.filter((box) => box.checked).map((box) => box.value)) };
}

function pickedLabels(column, changed) {
  const search = async (text) => {
    const found = column.values.filter((value) => value.toLowerCase().includes(text.toLowerCase()));
    return { options: found.slice(0, 20).map((value) => ({ value, text: value })), more: found.length > 20 };
  };
  const hint = `any of ${column.n_values} values`;
  const { node, values } = picker({ label: column.name, hint, search, changed, own: "use as a value" });
  return { node, value: () => given(values()) };
}

const given = (values) => (values.length ? values : undefined);

function labelled(name, input, hint) {
  return el("div", { class: "field" }, el("label", { for: input.id }, name), input,
    hint && el("p", { id: `${input.id}-hint`, class: "hint" }, hint));
}

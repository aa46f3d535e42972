// The API reference: Swagger UI with the server's own OpenAPI document, its recipes, and the key from the console.

import { byId, el } from "./dom.js";
import { SNIPPETS } from "./snippets.js";

const STORED = "svc.key"; // as the console stores it, for this tab only
const ROOT = new URL("../", document.baseURI);
const DARK = matchMedia("(prefers-color-scheme: dark)");

function chooseScheme() {
  document.documentElement.classList.toggle("dark-mode", DARK.matches);
}

async function read(path, key) {
  const headers = key ? { "X-API-Key": key } : {};
  const answer = await fetch(new URL(path, ROOT), { headers, cache: "no-store" }).catch(() => null);
  return answer?.ok ? answer.json() : null;
}

async function start() {
  chooseScheme();
  DARK.addEventListener("change", chooseScheme);
  const key = sessionStorage.getItem(STORED);
  const whole = await read("v1/openapi.json");
  if (!whole) {
    byId("operations").replaceChildren(el("p", { class: "failure", role: "alert" }, "The document cannot be read: the server does not answer."));
    return;
  }
  shortenErrors(whole);
  plainTexts(whole);
  const needsKey = Boolean(whole.components.securitySchemes);
  const recipes = key || !needsKey ? ((await read("v1/recipes", key))?.recipes ?? null) : null;
  if (recipes) offerRecipes(whole, recipes);
  sayKey(needsKey, key && recipes, recipes);
  show(whole, recipes ? key : null);
}

/** Put the names of the loaded recipes into the document, so that the user can choose one. */
function offerRecipes(whole, recipes) {
  const names = recipes.filter((recipe) => recipe.loaded).map((recipe) => recipe.name);
  if (!names.length) return;
  for (const item of Object.values(whole.paths)) {
    for (const parameter of item.parameters ?? []) {
      if (parameter.in === "path" && parameter.name === "name") {
        parameter.schema = { type: "string", enum: names };
        parameter.example = names[0];
      }
    }
  }
}

/** Remove the backticks of Markdown, because Swagger UI shows them in most texts. */
function plainTexts(part) {
  for (const [name, value] of Object.entries(part)) {
    if (value && typeof value === "object") plainTexts(value);
    else if ((name === "summary" || name === "description") && typeof value === "string") part[name] = value.replaceAll("`", "");
  }
}

/** Remove the bodies of errors, which the schemas show, so that an operation has one line for each status. */
function shortenErrors(whole) {
  for (const item of Object.values(whole.paths)) {
    for (const { responses } of Object.values(item).filter((operation) => operation.responses)) {
      for (const [status, answer] of Object.entries(responses)) {
        const schema = answer.content?.["application/json"]?.schema?.$ref ?? "";
        delete answer.headers;
        if (Number(status) >= 400 && schema.endsWith("/Error")) delete answer.content;
      }
    }
  }
}

function sayKey(needsKey, works, recipes) {
  const served = recipes ? `Recipes with a model: ${recipes.filter((recipe) => recipe.loaded).map((recipe) => recipe.name).join(", ") || "none"}.` : "";
  const text = !needsKey ? "This server asks for no key."
    : works ? "Requests from this page carry the key that this tab has from the console."
      : "Requests need a key: open the console in this tab and enter it there, or use Authorize.";
  byId("key-said").textContent = `${text} ${served}`;
}

function show(whole, key) {
  whole.servers = [{ url: ROOT.href.replace(/\/$/, "") }];
  const ui = window.SwaggerUIBundle({
    spec: whole,
    domNode: byId("operations"),
    deepLinking: true,
    docExpansion: "list",
    defaultModelRendering: "model",
    defaultModelExpandDepth: 2,
    defaultModelsExpandDepth: 0,
    displayRequestDuration: true,
    validatorUrl: null,
    syntaxHighlight: { activated: false },
    requestSnippetsEnabled: true,
    requestSnippets: { generators: Object.fromEntries(Object.entries(SNIPPETS).map(([name, { title }]) => [name, { title, syntax: "bash" }])),
      defaultExpanded: true, languages: Object.keys(SNIPPETS) },
    plugins: [{ fn: Object.fromEntries(Object.entries(SNIPPETS).map(([name, { make }]) => [`requestSnippetGenerator_${name}`, make])) }],
    onComplete: () => {
      if (key) ui.preauthorizeApiKey("ApiKey", key);
      byId("operations").removeAttribute("aria-busy");
    },
  });
}

read("console/server.json").then((server) => { byId("console-link").hidden = !server; });
start();

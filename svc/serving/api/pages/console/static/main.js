// The start of the console: the form for the key, if the server needs one, and then the other parts of the page.

import { ask, key } from "./api.js";
import { offer, startAttempt, tryRecipe } from "./attempt.js";
import { byId } from "./dom.js";
import { showFiguresOff, startFigures } from "./figures.js";
import { startRecipes } from "./recipes.js";

const KEY = /^[A-Za-z0-9_-]{43}$/;
let started = false;

async function start() {
  const { body: server } = await ask("console/server.json");
  byId("reference-link").hidden = !server.reference;
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    enter(server);
  });
  byId("forget").addEventListener("click", () => {
    key.forget();
    location.reload();
  });
  addEventListener("svc:refused", () => {
    key.forget();
    askForKey("The server no longer takes this key.");
  });
  if (server.keys && !key.get()) askForKey("");
  else open(server);
}

function askForKey(reason) {
  byId("content").hidden = true;
  byId("key-used").hidden = true;
  byId("key").hidden = false;
  byId("key-error").textContent = reason;
  byId("health").textContent = "locked";
  byId("key-field").focus();
}

/** Keep the entered key if it has the form of a key and the server accepts it. Otherwise show why not. */
async function enter(server) {
  const value = byId("key-field").value.trim();
  const error = byId("key-error");
  error.textContent = "";
  if (!KEY.test(value)) {
    error.textContent = "A key has 43 characters: letters, digits, - and _. It is what svc keygen --type api printed as plaintext.";
    return byId("key-field").focus();
  }
  key.set(value);
  const answer = await ask("v1/recipes");
  if (answer.status === 401) error.textContent = "The server does not know this key.";
  else if (!answer.ok) error.textContent = answer.body.detail;
  if (!answer.ok) return key.forget();
  byId("key-field").value = "";
  open(server);
  byId("recipe").focus();
}

function open(server) {
  byId("key").hidden = true;
  byId("content").hidden = false;
  byId("key-used").hidden = !key.get();
  if (started) return;
  started = true;
  startAttempt(server.keys);
  startRecipes(offer, tryRecipe);
  if (server.metrics) startFigures();
  else showFiguresOff();
}

start();

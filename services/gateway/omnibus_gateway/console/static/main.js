// Which page is shown, and the keys.

import { alerts } from "./alerts.js";
import { keys, shareKeys } from "./api.js";
import { apiReference } from "./api_reference.js";
import { app, apps } from "./apps.js";
import { deadLetter, deadLetters } from "./dead_letters.js";
import { fill, h, say } from "./dom.js";
import { executor, executors } from "./executors.js";
import { failures } from "./failures.js";
import { history as historyPage } from "./history.js";
import { invocation } from "./invocation.js";
import { invocations } from "./invocations.js";
import { apiKeys } from "./keys.js";
import { live } from "./live.js";
import { plan } from "./plan.js";
import { playground } from "./playground.js";
import { settings } from "./settings.js";
import { connect, follow, state } from "./state.js";

const PAGES = {
  live, plan, history: historyPage, invocations, failures, alerts, executors, deadletters: deadLetters, apps, keys: apiKeys, settings, playground, api: apiReference,
};
const DETAILS = { invocations: invocation, executors: executor, apps: app, deadletters: deadLetter };
const TITLES = Object.fromEntries([...document.querySelectorAll("nav a")].map((link) => [link.getAttribute("href").slice(2), link.textContent]));
const LINKS = {
  connecting: "connecting",
  live: "live",
  lost: "not connected, trying again",
  away: "connected, not everything answers",
  closed: "locked: sign in",
};

const main = document.getElementById("main");
let leave = () => {};
let shown = "";

function show() {
  const hash = location.hash;
  if (hash === "#main") return main.focus();
  const [name, id] = hash.replace(/^#\/?/, "").split("?")[0].split("/", 2).map(decodeURIComponent);
  const page = PAGES[name] ? name : "live";
  if (shown === hash && shown) return;
  const first = !shown;
  shown = hash || "#/live";
  leave();
  document.title = `${id || TITLES[page]} · Omnibus`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === `#/${page}`) {
      link.setAttribute("aria-current", "page");
      if (!first) link.scrollIntoView({ block: "nearest", inline: "center" });
    } else link.removeAttribute("aria-current");
  }
  const room = fill(main, h("div", { class: "room" })).firstChild;
  leave = (id && DETAILS[page] ? DETAILS[page](room, id) : PAGES[page](room)) || (() => {});
  scrollTo(0, 0);
  if (!first) main.focus({ preventScroll: true });
}

// Keys

const dialog = document.getElementById("asked");
const fields = { admin: document.getElementById("admin"), key: document.getElementById("key") };
let asked = false;

/** The token of a link such as `omnibus up` prints. It leaves the address, and with it the history, at once. */
function takeToken() {
  const token = location.hash.match(/^#token=(.+)$/)?.[1];
  if (!token) return false;
  keys.set("admin", decodeURIComponent(token));
  history.replaceState(null, "", "#/live");
  return true;
}

const keysButton = document.getElementById("keys");
const leaveButton = document.getElementById("leave");

/** Say in the header who is signed in. A token that the gateway refused signs nobody in. */
function showSignedIn() {
  const who = [keys.get("admin") && state.link !== "closed" && "operator", keys.get("key") && "API key"].filter(Boolean);
  say(keysButton, who.join(", ") || "Sign in");
  keysButton.ariaLabel = who.length ? `Signed in: ${who.join(", ")}` : null;
  keysButton.title = who.length ? "Signed in. Change the token or key" : "";
  leaveButton.hidden = !who.length;
}

/** Forget the tokens in all tabs. The page loads anew, so that nothing it has read stays. */
function signOut() {
  for (const name of Object.keys(fields)) keys.set(name, "");
  void shareKeys();
  location.reload();
}

/** Go on with what another tab did: signed in, or out. */
function followTab() {
  if (!keys.get("admin") && !keys.get("key")) return location.reload();
  asked = false;
  dialog.close();
  connect();
}

function askKeys(wrong) {
  say(document.getElementById("asked-wrong"), wrong === true ? "The gateway does not accept this token or key." : "");
  for (const [name, field] of Object.entries(fields)) field.value = keys.get(name);
  if (!dialog.open) dialog.showModal();
}

keysButton.addEventListener("click", askKeys);
leaveButton.addEventListener("click", signOut);
document.getElementById("asked-close").addEventListener("click", () => dialog.close());
dialog.querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  for (const [name, field] of Object.entries(fields)) keys.set(name, field.value.trim());
  shareKeys();
  asked = false;
  dialog.close();
  connect();
});

const link = document.getElementById("link");
follow(({ link: word, problem }) => {
  link.dataset.link = word;
  say(link, LINKS[word]);
  link.title = problem ? problem.message : "";
  showSignedIn();
  if (word === "closed" && !asked) {
    asked = true;
    askKeys(Boolean(keys.get("admin") || keys.get("key")));
  }
  if (word === "live") asked = false;
});

addEventListener("hashchange", () => {
  if (takeToken()) {
    shareKeys();
    connect();
  }
  show();
});
// A tab without a token waits a moment for those of other tabs.
void shareKeys(takeToken(), followTab).then(() => {
  show();
  connect();
});

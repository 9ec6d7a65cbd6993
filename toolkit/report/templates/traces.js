// What is shown, and what keys and addresses do. The fragment of the address names the trace.

let verdicts = null; // by name of trace; read with the first one
let current = null; // the row of the trace that is shown
let allOpen = false;
const answersOfRepeats = new Map();

const say = (text) => { byId("message").textContent = text; };

function showOnly(id) {
  for (const other of ["canary", "list", "trace"]) byId(other).hidden = other !== id;
}

async function start() {
  let index;
  try {
    index = await read("index");
    takeIndex(opened(index));
  } catch (error) {
    if (error instanceof Locked) return askForCanary(index);
    return say(`The table of traces cannot be read: ${error.message}.`);
  }
  await begin();
}

async function begin() {
  window.addEventListener("hashchange", route);
  await route();
  requestAnimationFrame(() => performance.mark("shown"));
}

function askForCanary(index) {
  showOnly("canary");
  byId("canary-text").focus();
  byId("canary").onsubmit = async (event) => {
    event.preventDefault();
    if (!globalThis.crypto?.subtle) {
      return say("This browser gives no SHA-256 here: open the page from a disk, or from localhost.");
    }
    key = await sealKey(byId("canary-text").value);
    let table;
    try {
      table = opened(index);
    } catch {
      key = null;
      return say("This canary does not open the traces.");
    }
    byId("canary-text").value = "";
    say("");
    takeIndex(table);
    await begin();
  };
}

async function route() {
  let name = "";
  try {
    name = decodeURIComponent(location.hash.slice(1));
  } catch {
    // A damaged address is that of the list.
  }
  const row = rows.find((candidate) => candidate.name === name);
  if (row) return showTrace(row);
  const last = current;
  current = null;
  showOnly("list");
  document.title = byId("run").textContent;
  if (last) last.element.querySelector("a")?.focus();
}

async function showTrace(row) {
  current = row;
  try {
    const [trace, details] = await Promise.all([part(row.name), verdicts || part("verdicts")]);
    if (current !== row) return; // Another was asked for meanwhile.
    verdicts = details;
    for (const [name, verdict] of Object.entries(verdicts)) answersOfRepeats.set(name, verdict.answer);
    byId("trace").replaceChildren(toolbar(row), ...traceElements(trace, row, verdicts[row.name]));
    say("");
  } catch (error) {
    byId("trace").replaceChildren(toolbar(row), make("h1", { id: "trace-title", tabindex: "-1" }, row.qid));
    say(`This trace cannot be shown: ${error.message}.`);
  }
  openPages(allOpen);
  showOnly("trace");
  document.title = `Question ${row.qid}`;
  window.scrollTo(0, 0);
  byId("trace-title").focus({ preventScroll: true });
}

// The rows that have a trace, of those that the filters show.
const readable = () => shown.filter((row) => row.status !== "missing");

// The row behind (1) or before (-1) the current one.
function neighbour(step) {
  const place = readable().indexOf(current);
  return place < 0 ? readable()[0] : readable()[place + step];
}

function toolbar(row) {
  const place = readable().indexOf(row);
  const link = (target, text) => (target && target !== row
    ? make("a", { href: address(target) }, text)
    : make("span", { class: "muted" }, text));
  return make("nav", { class: "bar", "aria-label": "Questions" },
    make("a", { href: "#" }, "All questions"),
    link(neighbour(-1), "‹ Previous"),
    make("span", { class: "muted" }, place < 0 ? "filtered out" : `${place + 1} of ${readable().length}`),
    link(neighbour(1), "Next ›"),
    make("button", { type: "button", id: "all-pages", click: () => openPages(!allOpen) }));
}

function openPages(open) {
  allOpen = open;
  for (const page of document.querySelectorAll("details.page")) page.open = open;
  if (byId("all-pages")) byId("all-pages").textContent = open ? "Close all pages" : "Open all pages";
}

function go(row) {
  if (row && row !== current) location.hash = address(row);
}

function moveCall(step) {
  const calls = [...document.querySelectorAll(".call")];
  const place = calls.indexOf(document.activeElement.closest(".call"));
  const target = calls[place < 0 ? (step > 0 ? 0 : calls.length - 1) : place + step];
  if (target) goToCall(target.id.slice("call-".length));
}

function moveRow(step) {
  const links = [...document.querySelectorAll("#table tbody a")];
  const place = links.indexOf(document.activeElement);
  links[place < 0 ? 0 : place + step]?.focus();
}

const TRACE_KEYS = {
  j: () => go(neighbour(1)),
  ArrowRight: () => go(neighbour(1)),
  k: () => go(neighbour(-1)),
  ArrowLeft: () => go(neighbour(-1)),
  n: () => moveCall(1),
  p: () => moveCall(-1),
  e: () => openPages(!allOpen),
  Escape: () => { location.hash = ""; },
};
const LIST_KEYS = {
  j: () => moveRow(1),
  k: () => moveRow(-1),
  "/": () => byId("f-text").focus(),
};

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, select, textarea");
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const keys = current ? TRACE_KEYS : byId("list").hidden ? {} : LIST_KEYS;
  if (!Object.hasOwn(keys, event.key)) return;
  event.preventDefault();
  keys[event.key]();
});
byId("filters").addEventListener("input", refresh);
byId("filters").addEventListener("reset", () => setTimeout(refresh));
byId("filters").addEventListener("submit", (event) => event.preventDefault());
start();

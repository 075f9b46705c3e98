// All documents: find, sort, open, and remove them, with undo.

import { call } from "./api.js";
import { $, day, label, make, name, place, plural, size, whenNear } from "./dom.js";
import { at, go, href, lead } from "./route.js";

const STEP = 100; // documents per request
const COLUMNS = { name: "Name", folder: "Folder", pages: "Pages", size: "Size", modified: "Changed" };
const FALLING = ["pages", "size", "modified"]; // sorted in descending order
export const UNDO_SECONDS = 8;

const leaving = new Map(); // ids of documents with a pending removal -> their timers
let readOnly = true;
let whenChanged = () => {};
let asked = 0;
let loading = false;
let passed = 0;
let total = 0;

export function know(status, changed) {
  readOnly = status.read_only;
  whenChanged = changed;
}

export async function showDocuments() {
  const number = ++asked;
  document.title = "Documents - RandSlot";
  if (document.activeElement !== $("find")) $("find").value = at().get("find") ?? "";
  passed = 0;
  loading = false;
  showHead();
  await load(number);
}

function order() {
  const sort = at().get("sort") in COLUMNS ? at().get("sort") : "name";
  return { sort, order: at().get("order") ?? (FALLING.includes(sort) ? "down" : "up") };
}

function showHead() {
  const now = order();
  const cells = Object.entries(COLUMNS).map(([key, text]) => {
    const current = now.sort === key;
    const button = make("button", { type: "button", textContent: text });
    const other = now.order === "up" ? "down" : "up";
    button.addEventListener("click", () => go({ sort: key, order: current ? other : "" }, true));
    const cell = make("th", { scope: "col", className: key === "name" ? "" : key }, button);
    if (current) cell.ariaSort = now.order === "up" ? "ascending" : "descending";
    return cell;
  });
  const focused = [...$("documents").querySelectorAll("thead button")].indexOf(document.activeElement);
  $("documents").tHead.rows[0].replaceChildren(...cells, make("th", { scope: "col" }, make("span", { className: "unseen", textContent: "Remove" })));
  if (focused >= 0) $("documents").querySelectorAll("thead button")[focused].focus();
}

async function load(number = asked) {
  if (loading) return;
  loading = true;
  const part = at().get("find") ?? "";
  const asking = new URLSearchParams({ ...order(), name: part, offset: passed, limit: STEP });
  const answer = await call(`/api/documents?${asking}`);
  if (number !== asked) return;
  if (!passed) $("documents").tBodies[0].replaceChildren();
  passed += answer.documents.length;
  total = answer.total;
  $("documents").tBodies[0].append(...answer.documents.map(row));
  $("documents").hidden = !total;
  $("documents-message").textContent = tell(part);
  $("more-documents").hidden = passed >= total;
  loading = false;
}

function tell(part) {
  if (part) return total ? `${plural(total, "document")} with "${part}"` : `No document has "${part}" in its name.`;
  return total ? plural(total, "document") : "The library is empty.";
}

function row(document) {
  const open = { open: `${document.id}:1` };
  const link = lead(make("a", { href: href(open) }, name(document.name), ...place(document)), open);
  const cell = (key, text) => make("td", { className: key, textContent: text });
  const made = make("tr", {}, make("th", { scope: "row" }, link), cell("folder", document.folder), cell("pages", document.pages.toLocaleString("en")),
    cell("size", size(document.bytes)), cell("modified", day(document.modified)), make("td", { className: "act" }));
  made.cells[2].dataset.unit = document.pages === 1 ? "page" : "pages";
  made.hidden = leaving.has(document.id);
  if (!readOnly) made.cells[5].append(removeButton(document, made));
  return made;
}

// -- removing. The request is sent when the undo time is over: if the browser closes before that, nothing is removed.

function removeButton(document, made) {
  const button = make("button", { type: "button", ariaLabel: `Remove ${label(document)}`, title: "Remove from the library", textContent: "×" });
  button.addEventListener("click", (event) => {
    if (event.detail > 1) return; // ignore the second click of a double click: it hits the row that moved up
    made.hidden = true;
    offerUndo(document, made);
  });
  return button;
}

function offerUndo(document, made) {
  const undo = make("button", { type: "button", textContent: "Undo" });
  const text = document.uploaded ? " is being removed; its uploaded file will be deleted." : " is being removed from the library; its file is kept.";
  const toast = make("li", {}, make("span", {}, name(document.name), ...place(document), text), undo);
  undo.addEventListener("click", () => {
    clearTimeout(leaving.get(document.id));
    leaving.delete(document.id);
    made.hidden = false;
    toast.remove();
    made.querySelector("button").focus();
  });
  leaving.set(document.id, setTimeout(() => remove(document, made, toast), UNDO_SECONDS * 1000));
  $("undo").append(toast);
  undo.focus();
}

async function remove(document, made, toast) {
  toast.querySelector("button").remove();
  try {
    await call(`/api/documents/${document.id}`, undefined, "DELETE");
  } catch (error) {
    leaving.delete(document.id);
    made.hidden = false;
    toast.textContent = `Cannot remove ${document.name}: ${error.message}`;
    toast.className = "bad";
    setTimeout(() => toast.remove(), UNDO_SECONDS * 1000);
    return;
  }
  leaving.delete(document.id);
  toast.remove();
  whenChanged();
}

// -- failed uploads

export async function showFailures() {
  if (readOnly) return;
  const failed = (await call("/api/uploads")).uploads.filter(({ state }) => state === "failed");
  $("failures").hidden = !failed.length;
  $("failures").querySelector("summary").textContent = `${plural(failed.length, "upload")} could not be added`;
  $("failures").querySelector("ul").replaceChildren(...failed.map((upload) =>
    make("li", {}, name(upload.name), make("span", { className: "bad", textContent: upload.error }))));
}

// -- events

let typing = 0;
$("find").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => go({ find: $("find").value.trim() }, true), 200);
});
whenNear($("more-documents"), () => load().catch((error) => {
  $("documents-message").textContent = error.message;
  $("more-documents").hidden = true;
}));

// The page: switch views, load the status of the library, and connect the modules.

import { call } from "./api.js";
import { $, plural, sentence } from "./dom.js";
import * as documents from "./documents.js";
import * as filters from "./filters.js";
import "./keys.js";
import { at, dropBad, go, moved, onMove } from "./route.js";
import * as search from "./search.js";
import * as uploads from "./uploads.js";
import * as viewer from "./viewer.js";

let shown = null; // the URL parameters of the view behind the open page

async function about() {
  const status = await call("/api/status");
  const parts = [status.library, plural(status.pages, "page"), plural(status.documents, "document")];
  $("about").textContent = parts.join(" · ");
  $("notes").textContent = status.notes.map(sentence).join(" ");
  $("notes").hidden = !status.notes.length;
  $("sign-out").hidden = !status.signed_in;
  search.know(status);
  viewer.know(status);
  uploads.know(status, changed);
  documents.know(status, changed);
  filters.know(status);
}

// After documents were added or removed: reload lists, but keep the query and the hits.
async function changed() {
  await about();
  filters.offer().catch(() => {});
  if (at().get("view") === "documents") await Promise.all([documents.showDocuments(), documents.showFailures()]);
  else if (!at().get("q")) await search.search();
}

async function show() {
  const bad = dropBad();
  ignore(bad.length ? `Ignored in the URL: ${bad.join(", ")}` : "");
  const now = at();
  const view = now.get("view") === "documents" ? "documents" : "search";
  now.delete("open");
  const before = shown;
  shown = now.toString();
  try {
    const isDrawn = before === shown ? null : showView(view, new URLSearchParams(before ?? ""));
    if (!now.get("q")) await openPage(); // else its marks and its rank wait for the hits
    await isDrawn;
    if (now.get("q")) await openPage();
  } catch (error) {
    if (view === "documents") $("documents-message").textContent = sentence(error.message);
    else search.fail(error);
  }
}

function ignore(text) {
  $("ignored").textContent = text;
  $("ignored").hidden = !text;
}

async function openPage() {
  try {
    await viewer.open();
  } catch (error) {
    if ($("viewer").open) return viewer.tell(error.message);
    ignore(`Cannot open the page: ${error.message}`);
  }
}

async function showView(view, before) {
  $("search-view").hidden = view !== "search";
  $("documents-view").hidden = view !== "documents";
  for (const one of ["search", "documents"]) {
    one === view ? $(`to-${one}`).setAttribute("aria-current", "page") : $(`to-${one}`).removeAttribute("aria-current");
  }
  if (view === "documents") await known; // to know whether documents can be removed
  if (view === "documents") return Promise.all([documents.showDocuments(), before.get("view") === view || documents.showFailures()]);
  if ($("query").value.trim() !== (at().get("q") ?? "")) $("query").value = at().get("q") ?? ""; // keep trailing spaces while typing
  filters.showFilters();
  known.then(filters.offer).catch(() => {});
  return search.search();
}

for (const link of document.querySelectorAll("[data-go]")) {
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    go(link.getAttribute("href"));
    window.scrollTo(0, 0);
  });
}
$("sign-out").addEventListener("click", async () => {
  await call("/api/session", undefined, "DELETE");
  window.location.assign("/");
});
onMove(show);
const known = about();
Promise.all([known, moved()]).catch(search.fail);

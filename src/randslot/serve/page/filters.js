// Filters of a search: documents by name, folder, year, kind, language, date and metadata; and whether it uses words, meaning or both.

import { call } from "./api.js";
import { $, make, plural } from "./dom.js";
import { at, go, href, lead } from "./route.js";

const NAMES = 12; // suggestions
const FEW = 6; // values of a facet to show at first
const CHANGED = { "7d": "Past 7 days", "30d": "Past 30 days", "365d": "Past 12 months" };
const BY = { both: "Words and meaning", words: "Words only", vectors: "Meaning only" };
const KINDS = { pdf: "PDF", document: "Document", slides: "Slides", sheet: "Sheet", text: "Text", web: "Web page", mail: "Mail", book: "Book", image: "Image" };
const OWN = ["in", "folder", "year", "type", "language", "when"];

let known = null; // the status of the library
const unfolded = new Set(); // expanded facets

export const names = () => [...at().keys()].filter((key) => OWN.includes(key) || key.startsWith("m."));

// The filters in the URL as an API request.
export function chosen() {
  const now = at();
  const body = {};
  for (const key of ["in", "folder", "year", "type", "language"]) if (now.get(key)) body[key] = now.get(key);
  if (now.get("when")) body.modified_from = new Date(Date.now() - Number.parseInt(now.get("when"), 10) * 86_400_000).toISOString().slice(0, 10);
  const metadata = [...now].filter(([key]) => key.startsWith("m.")).map(([key, value]) => [key.slice(2), value]);
  if (metadata.length) body.metadata = Object.fromEntries(metadata);
  return body;
}

// The filter for one document: with its folder if others have the same name.
export const only = ({ name, place, folder }) => ({ in: name, ...(place && folder && { folder }) });

// -- facets: the values of documents, with counts

let asked = 0;

export const know = (status) => { known = status; };

export async function offer() {
  const number = ++asked;
  const { metadata: _, ...plain } = chosen();
  const found = await call(`/api/facets?${new URLSearchParams(plain)}`);
  if (number !== asked) return;
  document.body.classList.toggle("one-folder", Object.keys(found.folders).length < 2);
  const facets = [
    facet("folder", "Folder", found.folders), facet("year", "Year", found.years, {}, (one, other) => other[0] - one[0]),
    facet("type", "Kind", found.types, KINDS), facet("language", "Language", found.languages, Object.fromEntries(Object.keys(found.languages).map((one) => [one, one[0].toUpperCase() + one.slice(1)]))),
    ...Object.entries(found.metadata).map(([key, values]) => facet(`m.${key}`, key, values)),
    known.documents > 1 && facet("when", "Changed", Object.fromEntries(Object.keys(CHANGED).map((key) => [key, null])), CHANGED, () => 0),
    known.model !== null && known.language !== null && facet("by", "Search by", Object.fromEntries(Object.keys(BY).map((key) => [key, null])), BY, () => 0),
  ];
  $("facets").replaceChildren(...facets.filter(Boolean));
  showFilters();
}

function facet(key, title, values, texts = {}, order = (one, other) => other[1] - one[1]) {
  const now = at().get(key) ?? (key === "by" ? known.by : "");
  if (now && !(now in values)) values = { ...values, [now]: 0 };
  const all = Object.entries(values).sort(order);
  const isSame = all.length === 1 && all[0][1] >= known.documents; // filters nothing
  if ((!all.length || isSame) && !at().has(key)) return null;
  const shown = unfolded.has(key) ? all : all.filter(([value], i) => i < FEW || value === now);
  const items = shown.map(([value, count]) => make("li", {}, option(key, value, count, texts[value] ?? value, value === now)));
  if (all.length > shown.length) {
    const rest = make("button", { type: "button", className: "rest", textContent: `${all.length - shown.length} more` });
    rest.addEventListener("click", () => { unfolded.add(key); offer().catch(() => {}); });
    items.push(make("li", {}, rest));
  }
  return make("section", {}, make("h2", { textContent: title }), make("ul", {}, ...items));
}

function option(key, value, count, text, isChosen) {
  const changes = { [key]: isChosen ? "" : value, open: "" };
  const link = make("a", { href: href(changes) }, make("span", { textContent: text }));
  if (count) link.append(make("small", { textContent: count.toLocaleString("en"), title: plural(count, "document") }));
  if (isChosen) link.setAttribute("aria-current", "true");
  return lead(link, changes);
}

export function showFilters() {
  const now = at();
  if (document.activeElement !== $("source")) $("source").value = now.get("in") ?? "";
  const number = names().length;
  $("filters").hidden = $("open-filters").hidden = !now.get("q") && !number;
  $("open-filters").textContent = number ? `Filters (${number})` : "Filters";
  $("clear").hidden = !number;
}

export const clear = () => go({ ...Object.fromEntries(names().map((name) => [name, ""])), open: "" });

$("open-filters").addEventListener("click", () => {
  const open = $("filters").classList.toggle("open");
  $("open-filters").ariaExpanded = String(open);
});
$("clear").addEventListener("click", () => { $("source").value = ""; clear(); });

// -- autocompletion of names

let naming = 0;
let typing = 0;

async function suggest() {
  const number = ++naming;
  const { total, documents } = await call(`/api/documents?limit=${NAMES}&in=${encodeURIComponent($("source").value.trim())}`);
  if (number !== naming || document.activeElement !== $("source")) return;
  const options = documents.map((document, i) => {
    const { name, place, folder, pages } = document;
    const about = make("small", { textContent: `${place || folder} · ${plural(pages, "page")}` });
    const option = make("li", { id: `name-${i}`, role: "option", ariaSelected: "false" }, make("span", { textContent: name }), about);
    option.dataset.name = name;
    option.dataset.folder = only(document).folder ?? "";
    return option;
  });
  const rest = total - documents.length;
  if (rest > 0) options.push(make("li", { className: "rest", role: "presentation", textContent: `and ${plural(rest, "more document")}` }));
  if (!total) options.push(make("li", { className: "rest", role: "presentation", textContent: "No document name matches" }));
  $("names").replaceChildren(...options);
  expand(true);
}

function expand(open) {
  $("names").hidden = !open;
  $("source").ariaExpanded = String(open);
  $("source").removeAttribute("aria-activedescendant");
}

const active = () => $("names").querySelector("[aria-selected=true]");

function activate(step) {
  const options = [...$("names").querySelectorAll("[role=option]")];
  if (!options.length) return;
  const before = options.indexOf(active());
  const next = before < 0 ? (step > 0 ? 0 : options.length - 1) : (before + step + options.length) % options.length;
  options.forEach((option, i) => { option.ariaSelected = String(i === next); });
  options[next].scrollIntoView({ block: "nearest" });
  $("source").setAttribute("aria-activedescendant", options[next].id);
}

function choose(option) {
  const { name, folder } = option.dataset;
  $("source").value = name;
  expand(false);
  go({ in: name, ...(folder && { folder }), open: "" });
}

export const stopSuggesting = () => { clearTimeout(typing); naming++; expand(false); };

$("source").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => suggest().catch(() => {}), 150);
});
$("source").addEventListener("focus", () => suggest().catch(() => {}));
$("source").addEventListener("blur", stopSuggesting);
$("source").addEventListener("search", () => { if (!$("source").value && at().has("in")) go({ in: "", open: "" }); });
$("source").addEventListener("keydown", (event) => {
  const open = !$("names").hidden;
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    open ? activate(event.key === "ArrowDown" ? 1 : -1) : suggest().catch(() => {});
  }
  if (event.key === "Escape" && open) { event.preventDefault(); stopSuggesting(); }
  if (event.key === "Enter") {
    event.preventDefault();
    if (open && active()) return choose(active());
    stopSuggesting();
    go({ in: $("source").value.trim(), open: "" });
  }
});
$("names").addEventListener("pointerdown", (event) => { // before the field loses focus, which closes the list
  event.preventDefault();
  const option = event.target.closest("[role=option]");
  if (option) choose(option);
});

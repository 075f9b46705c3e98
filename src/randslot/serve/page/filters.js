// What a search is limited to: documents by name, folder, date and metadata; and what it compares.

import { call } from "./api.js";
import { $, make, plural } from "./dom.js";
import { at, go } from "./route.js";

const NAMES = 12; // suggestions
const DAYS = { "7d": "past 7 days", "30d": "past 30 days", "365d": "past 12 months" };
const BY = { "": "Words and vectors", words: "Words only", vectors: "Vectors only" };
const OWN = ["in", "folder", "when", "by"];

export const names = () => [...at().keys()].filter((key) => OWN.includes(key) || key.startsWith("m."));

// The filters of the address as the API takes them.
export function chosen() {
  const now = at();
  const body = { name: now.get("in") ?? "" };
  if (now.get("folder")) body.folder = now.get("folder");
  if (now.get("when")) Object.assign(body, days(now.get("when")));
  const metadata = [...now].filter(([key]) => key.startsWith("m.")).map(([key, value]) => [key.slice(2), value]);
  if (metadata.length) body.metadata = Object.fromEntries(metadata);
  return body;
}

// What limits a search to one document: its folder too, if others have its name.
export const only = ({ name, place, folder }) => ({ in: name, ...(place && folder && { folder }) });

function days(when) {
  if (/^\d{4}$/.test(when)) return { year: Number(when) };
  const number = Number.parseInt(when, 10);
  if (!number) return {};
  return { modified_from: new Date(Date.now() - number * 86_400_000).toISOString().slice(0, 10) };
}

// -- the row of filters

export async function offer(status) {
  const { folders, years, metadata } = await call("/api/facets");
  const counted = (values) => Object.entries(values).map(([value, count]) => [value, `${value} (${count.toLocaleString("en")})`]);
  document.body.classList.toggle("one-folder", Object.keys(folders).length < 2);
  fill($("folder"), [["", "All folders"], ...counted(folders)], Object.keys(folders).length > 1);
  const dates = [["", "Any date"], ...Object.entries(DAYS), ...Object.keys(years).reverse().map((year) => [year, year])];
  fill($("when"), dates, status.documents > 1);
  const both = status.model !== null && status.language !== null;
  const usual = Object.entries(BY).map(([by, text]) => [by === "" ? "both" : by, text]).filter(([by]) => by !== status.by);
  fill($("by"), [["", BY[status.by === "both" ? "" : status.by]], ...usual], both);
  $("metadata").replaceChildren(...Object.entries(metadata).map(([key, values]) => {
    const select = make("select", { id: `m.${key}` });
    fill(select, [["", `Any ${key}`], ...counted(values)], true);
    select.addEventListener("change", () => go({ [`m.${key}`]: select.value, open: "" }));
    return make("span", {}, make("label", { className: "unseen", htmlFor: select.id, textContent: key }), select);
  }));
  showFilters();
}

function fill(select, options, useful) {
  select.hidden = !useful;
  select.replaceChildren(...options.map(([value, text]) => make("option", { value, textContent: text })));
}

export function showFilters() {
  const now = at();
  if (document.activeElement !== $("source")) $("source").value = now.get("in") ?? "";
  for (const select of $("filters").querySelectorAll("select")) {
    const value = now.get(select.id) ?? "";
    if (value && ![...select.options].some((option) => option.value === value)) {
      select.append(make("option", { value, textContent: value })); // of a shared address
      select.hidden = false;
    }
    select.value = value;
    select.classList.toggle("chosen", Boolean(value));
  }
  $("source").classList.toggle("chosen", now.has("in"));
  $("clear").hidden = !names().length;
}

export const clear = () => go({ ...Object.fromEntries(names().map((name) => [name, ""])), open: "" });

for (const id of ["folder", "when", "by"]) $(id).addEventListener("change", () => go({ [id]: $(id).value, open: "" }));
$("clear").addEventListener("click", () => { $("source").value = ""; clear(); });

// -- names that complete themselves

let asked = 0;
let typing = 0;

async function suggest() {
  const number = ++asked;
  const { total, documents } = await call(`/api/documents?limit=${NAMES}&name=${encodeURIComponent($("source").value.trim())}`);
  if (number !== asked || document.activeElement !== $("source")) return;
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
  if (!total) options.push(make("li", { className: "rest", role: "presentation", textContent: "No document has this in its name" }));
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

export const stopSuggesting = () => { clearTimeout(typing); asked++; expand(false); };

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
  if (event.key === "Enter" && open && active()) { event.preventDefault(); choose(active()); }
});
$("names").addEventListener("pointerdown", (event) => { // before the field loses the focus, which closes the list
  event.preventDefault();
  const option = event.target.closest("[role=option]");
  if (option) choose(option);
});

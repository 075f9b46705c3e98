// Search as you type: old hits stay until new ones arrive; scrolling loads more.

import { call } from "./api.js";
import { $, make, plural, rested, sentence, whenNear } from "./dom.js";
import { chosen, clear, names, stopSuggesting } from "./filters.js";
import * as hits from "./hits.js";
import { at, go, href, lead } from "./route.js";
import { hide, remember, showSaved, suggest } from "./suggest.js";

const REST = 150; // debounce in milliseconds before a search
const THINK = 700; // debounce before the slower search by meaning follows one by words
const PATIENCE = 500; // delay before showing that a search is running
const STEP = 20; // hits per request
const MOST = 100; // maximum number of hits to sort by date
const DEEPEST = 420; // maximum number of hits to show; the API skips at most 400
const FIRST = 24; // documents to show before a search

export const found = []; // the visible hits, in order: {document, page, ...}
export let corrected = null; // the corrected query, if the spelling was corrected
let learn;
let known = new Promise((done) => { learn = done; }); // the status of the library, once loaded
let by = null; // the default search mode of this library
let asked = 0; // the latest request; responses to older ones are dropped
let loading = false;
let complete = true; // there are no more hits
let grew = true; // the last response had new documents
let passed = 0; // hits received
let unknown = []; // query words that are on no page
let options = {}; // of the visible search
let groups = new Map(); // document id -> {element, hits}, in the order of their best hits
let places = new Map(); // pages -> their hits
let isTyped = false; // the search was started by typing, not submitted

export function say(text, bad = false) {
  $("message").textContent = text;
  $("message").classList.toggle("bad", bad);
}

export function know(status) {
  by = status.by;
  learn(status);
  known = Promise.resolve(status);
}

// The hit of a page, and its index among the visible hits; copies share the index of the first.
export function find(document, page) {
  const hit = places.get(hits.spot(document, page)) ?? null;
  return { hit, rank: hit ? found.indexOf(hit.first ?? hit) : -1 };
}

// -- searching, and the start view

export async function search() {
  const number = ++asked;
  const query = at().get("q") ?? "";
  const typed = isTyped;
  isTyped = false;
  document.title = query ? `${query} - RandSlot` : "RandSlot";
  stopSuggesting();
  showSaved();
  $("sort-label").hidden = !query;
  $("sort").value = at().get("sort") === "date" ? "date" : "";
  if (!query) return list(number);
  for (const picture of document.querySelectorAll("#hits.covers img")) hits.stop(picture);
  const waiting = setTimeout(() => { if (number === asked) $("hits").classList.add("waiting"), say("Searching ..."); }, PATIENCE);
  const wanted = { query, collapse: true, ...chosen() };
  if (at().get("by")) wanted.by = at().get("by");
  if (at().get("verbatim")) wanted.verbatim = true;
  if (typed) Object.assign(wanted, { prefix: !/\s$/.test($("query").value) }, (wanted.by ?? by) === "both" && { by: "words" });
  if (typed && (wanted.by ?? by) === "vectors") return clearTimeout(waiting); // runs after a pause
  try {
    await begin(number, wanted, typed);
  } finally {
    clearTimeout(waiting);
    if (number === asked) $("hits").classList.remove("waiting");
  }
}

async function begin(number, wanted, typed) {
  const isDated = at().get("sort") === "date";
  let answer;
  try {
    answer = await call("/api/search", { ...wanted, k: isDated ? MOST : STEP });
  } catch (error) {
    if (number !== asked) return;
    reset();
    throw error;
  }
  if (number !== asked) return;
  if (typed && !answer.hits.length) return search(); // with spelling correction and meaning
  reset();
  options = wanted;
  hits.ask({ query: answer.corrected ?? wanted.query, prefix: Boolean(wanted.prefix) });
  ({ unknown, corrected } = answer);
  complete = isDated;
  if (isDated) answer.hits.sort((one, other) => time(other) - time(one));
  await take(answer, isDated ? MOST : STEP);
  hits.forget();
}

const time = ({ document }) => Date.parse(document.date || document.modified);

function reset() {
  found.length = passed = 0;
  groups = new Map();
  places = new Map();
  complete = true;
  loading = false;
  corrected = null;
  unknown = [];
  $("more").hidden = $("empty").hidden = $("unknown").hidden = true;
  $("title").textContent = "Pages, best first";
  $("title").className = "unseen";
  $("hits").className = "found";
  $("hits").replaceChildren();
}

async function list(number) {
  const { total, documents } = await call(`/api/documents?limit=${FIRST}&sort=modified&order=down`);
  if (number !== asked) return;
  reset();
  $("hits").className = "covers";
  $("hits").replaceChildren(...documents.map((one) => hits.cover(one)));
  say("");
  $("title").textContent = total > documents.length ? `Latest of ${plural(total, "document")}` : "In this library";
  $("title").className = total ? "" : "unseen";
  hide();
  if (!total) await explainEmpty();
}

async function load(number = asked) {
  if (complete || loading) return;
  loading = true;
  try {
    const answer = await call("/api/search", { ...options, k: STEP, offset: passed });
    if (number === asked) await take(answer, STEP);
  } catch (error) {
    if (number === asked) complete = $("more").hidden = true;
    throw error;
  } finally {
    if (number === asked) loading = false;
  }
}

async function take(answer, step) {
  passed += answer.hits.length;
  const cut = answer.hits.length === step && (complete || passed >= DEEPEST);
  complete ||= answer.hits.length < step || passed >= DEEPEST;
  const before = groups.size;
  const first = passed - answer.hits.length;
  answer.hits.forEach((hit, i) => add(hit, first + i + 1));
  grew = groups.size > before || groups.size === 1;
  found.splice(0, Infinity, ...[...groups.values()].flatMap((group) => group.hits));
  if (groups.size === 1 && found.length > 1) $("hits").replaceChildren(...found.map(hits.show)); // nothing to group
  else if (before === 1) {
    for (const group of groups.values()) group.element = hits.show(group.hits[0]); // the other groups gave away their images
    $("hits").replaceChildren(...[...groups.values()].map(({ element }) => element));
  }
  if (groups.size > 1) for (const { element, hits: own } of groups.values()) if (own.length > 1) hits.showOthers(element, own.slice(1));
  await tell(cut);
  const note = answer.note ? sentence(answer.note) : "";
  if (note) say(found.length ? `${$("message").textContent}. ${note}` : note);
}

function add(hit, rank) {
  const place = hits.spot(hit.document, hit.page);
  if (places.has(place)) return; // ranks may change between requests
  hit.rank = rank;
  places.set(place, hit);
  for (const copy of hit.copies) places.set(hits.spot(copy.document, copy.page), { ...hit, ...copy, first: hit });
  const group = groups.get(hit.document.id);
  if (group) return group.hits.push(hit);
  const element = hits.show(hit);
  groups.set(hit.document.id, { element, hits: [hit] });
  $("hits").append(element);
}

// The number of hits so far.
export const total = () => `${found.length}${complete ? "" : "+"}`;

// Load more hits for the viewer.
export async function loadMore() {
  const before = found.length;
  await load();
  return found.length > before;
}

// -- messages about the hits

async function tell(cut) {
  const query = at().get("q");
  const notes = [];
  if (corrected) {
    const instead = lead(make("a", { href: href({ verbatim: "1" }), textContent: query }), { verbatim: "1" });
    notes.push("Showing results for ", make("strong", { textContent: corrected }), ". Search instead for ", instead, ". ");
  }
  if (unknown.length) notes.push(`${showUnknown()}.`);
  $("unknown").replaceChildren(...notes);
  $("unknown").hidden = !notes.length || !passed;
  if (!passed) await explainNothing();
  else {
    const pages = `${complete && !cut ? "" : "The best "}${plural(passed, "page")} in ${plural(groups.size, "document")}`;
    say(at().get("sort") === "date" ? `${pages}, latest first` : cut ? `${pages}. Refine the query or add a filter to see other pages.` : pages);
  }
  $("more").hidden = complete;
}

const showUnknown = () => `No page ${names().length ? "with these filters " : ""}has ${unknown.map((word) => `"${word}"`).join(" or ")}`;

function showEmpty(title, ...parts) {
  $("empty").replaceChildren(make("h2", { textContent: title }), ...parts);
  $("empty").hidden = false;
}

// Offer to retry a failed search.
export function fail(error) {
  say(sentence(error.message), true);
  if ($("hits").childElementCount) return;
  const again = make("button", { type: "button", className: "main", textContent: "Try again" });
  again.addEventListener("click", () => search().catch(fail));
  showEmpty("The search failed", again);
}

const paragraph = (...parts) => make("p", {}, ...parts);
const code = (text) => make("code", { textContent: text });

async function explainEmpty() {
  say("The library is empty.");
  const status = await known;
  const index = paragraph(status.read_only ? "Add documents with " : "Or add a folder with ", code("randslot index FOLDER"), ".");
  if (status.read_only) return showEmpty("Nothing to search yet", index);
  const choose = make("button", { type: "button", className: "main", textContent: "Choose files" });
  choose.addEventListener("click", () => $("files").click());
  showEmpty("Nothing to search yet", paragraph("Drop documents and images anywhere on this page."), choose, index);
}

async function explainNothing() {
  const query = at().get("q");
  say(`No page found for "${query}".`);
  if (names().length) {
    const all = make("button", { type: "button", className: "main", textContent: "Search all documents" });
    all.addEventListener("click", () => { $("source").value = ""; clear(); });
    return showEmpty("Nothing found with these filters", all);
  }
  const status = await known;
  if (!status.pages) return explainEmpty();
  if (status.by === "words" && !status.pages_with_text) {
    return showEmpty("No page of this library has text",
      paragraph("All pages are scans or images, so keyword search cannot find them."),
      paragraph("OCR reads them: ", code('pip install "randslot[ocr]"'), ", then ", code("randslot library words"), "."));
  }
  const tips = [...(unknown.length ? [`${showUnknown()}. Check the spelling.`] : []), "Try fewer or other words."];
  if (/["“”„«»]/.test(query)) tips.push("Remove the quotes: they match only these exact words in this order.");
  if (/(^|\s)-\p{L}/u.test(query)) tips.push("Remove words with a minus: they exclude pages.");
  const wordless = status.pages - status.pages_with_text;
  if (wordless) tips.push(`${plural(wordless, "page")} of this library ${wordless === 1 ? "has" : "have"} no searchable text.`);
  showEmpty("Nothing found", make("ul", {}, ...tips.map((tip) => make("li", { textContent: tip }))));
}

// -- events

let isNew = true; // the next keystroke adds a history entry
const finish = rested(THINK, () => { if (by !== "words" && at().get("q") === $("query").value.trim()) search().catch(fail); });
const typed = rested(REST, () => {
  const query = $("query").value.trim();
  suggest().catch(() => {});
  if (query === (at().get("q") ?? "")) return;
  isTyped = true;
  go({ q: query, verbatim: "", open: "" }, !isNew);
  isNew = false;
  finish();
});

$("query").addEventListener("input", () => { finish.cancel(); typed(); });
$("query").addEventListener("focus", () => { if (!$("query").value) suggest(); });
$("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const query = $("query").value.trim();
  typed.cancel();
  finish.cancel();
  if (!query) return;
  const isSame = query === at().get("q");
  Promise.resolve(isSame ? search() : go({ q: query, verbatim: "", open: "" }, !isNew)).catch(fail);
  remember();
  isNew = true;
  hide();
});
$("sort").addEventListener("change", () => go({ sort: $("sort").value, open: "" }));
whenNear($("more"), async (event) => (event || grew) && load().catch(fail));

// Pages that were found, best first: their text with the words marked, more of them as one scrolls, copies as one.

import { call } from "./api.js";
import { $, box, image, join, label, make, marked, name, plural, whenNear } from "./dom.js";
import { chosen, clear, names, stopSuggesting } from "./filters.js";
import { at, go, href, lead } from "./route.js";

const STEP = 20; // hits in one answer
const DEEPEST = 420; // hits that are shown at most; the API passes over no more than 400
const FIRST = 24; // documents that are shown before a search
const BOXES = 80; // on a thumbnail
const COPIES = 3; // that are named

export const found = []; // the hits that are shown, as {document, page, ...}
let learn;
let known = new Promise((done) => { learn = done; }); // the status of the library, once it is there
let asked = 0; // answers to older searches are dropped
let loading = false;
let complete = true; // nothing more can come
let passed = 0; // hits that have come
let unknown = []; // words of the query that no page has
let corrected = null; // the query that was searched for, if words of the given one were corrected
let places = new Map(); // pages -> the hits that they are, and their places

export function say(text, bad = false) {
  $("message").textContent = text;
  $("message").classList.toggle("bad", bad);
}

export function know(status) {
  learn(status);
  known = Promise.resolve(status);
}

const spot = (document, page) => `${document.id}:${page}`;

// The hit that a page is, and its place among those that are shown; a copy has the place of the first.
export const find = (document, page) => places.get(spot(document, page)) ?? { hit: null, rank: -1 };

// -- a search, or what there is before one

export async function search() {
  const number = ++asked;
  const query = at().get("q") ?? "";
  document.title = query ? `${query} - RandSlot` : "RandSlot";
  stopSuggesting();
  found.length = passed = 0;
  places = new Map();
  complete = true;
  loading = false;
  $("more").hidden = $("empty").hidden = $("unknown").hidden = true;
  $("title").textContent = query ? "Pages, best first" : "In this library";
  $("title").classList.toggle("unseen", Boolean(query));
  if (!query) return list(number);
  say("Searching ...");
  $("hits").classList.add("waiting");
  complete = false;
  await load(number);
}

async function list(number) {
  const { total, documents } = await call(`/api/documents?limit=${FIRST}&sort=modified&order=down`);
  if (number !== asked) return;
  $("hits").className = "covers";
  $("hits").replaceChildren(...documents.map(cover));
  say("");
  $("title").textContent = total > documents.length ? `Latest of ${plural(total, "document")}` : "In this library";
  $("title").hidden = !total;
  if (!total) await explainEmpty();
}

function cover(document) {
  const thumb = thumbnail(document, 1);
  const where = make("span", { className: "where", textContent: plural(document.pages, "page") + (document.place ? ` · in ${document.place}` : "") });
  const open = { open: spot(document, 1) };
  return make("li", {}, lead(make("a", { href: href(open), ariaLabel: `${document.name}, ${where.textContent}` }, thumb, name(document.name), where), open));
}

async function load(number = asked) {
  if (complete || loading) return;
  loading = true;
  const now = at();
  const by = now.get("by") ? { by: now.get("by") } : {};
  let answer;
  try {
    answer = await call("/api/search", { query: now.get("q"), k: STEP, offset: passed, collapse: true, ...chosen(), ...by });
  } catch (error) {
    if (number !== asked) return;
    loading = false;
    complete = $("more").hidden = true;
    if (!passed) empty();
    throw error;
  }
  if (number !== asked) return;
  const { hits } = answer;
  if (!passed) {
    empty();
    ({ unknown, corrected } = answer);
  }
  passed += hits.length;
  complete = hits.length < STEP || passed >= DEEPEST;
  for (const hit of hits) add(hit);
  loading = false;
  await tell(hits.length === STEP && complete);
  if (answer.note) say(answer.note);
}

function empty() {
  $("hits").className = "found";
  $("hits").replaceChildren();
}

async function tell(cut) {
  const query = at().get("q");
  const notes = corrected ? [`Showing results for ${corrected}. Put words in quotes to search as typed.`] : [];
  if (unknown.length) notes.push(`${showUnknown()}.`);
  $("unknown").textContent = notes.join(" ");
  $("unknown").hidden = !notes.length || !passed;
  if (!passed) await explainNothing();
  else if (cut) say(`The best ${plural(passed, "page")} for "${query}". Say more in the search, or filter, to see others.`);
  else say(complete ? `${plural(passed, "page")} for "${query}"` : `The best ${plural(passed, "page")} for "${query}"`);
  $("more").hidden = complete;
}

// Called by the viewer at the end of what is shown.
export async function loadMore() {
  const before = found.length;
  await load();
  return found.length > before;
}

// -- hits

function add(hit) {
  if (find(hit.document, hit.page).hit) return; // ranks may move as one looks further down
  places.set(spot(hit.document, hit.page), { hit, rank: found.length });
  for (const copy of hit.copies) places.set(spot(copy.document, copy.page), { hit: { ...hit, ...copy }, rank: found.length });
  const element = make("li");
  const open = { open: spot(hit.document, hit.page) };
  const where = make("span", { className: "where" }, `page ${hit.page} of ${hit.document.pages.toLocaleString("en")}`,
    hit.document.place ? ` · in ${hit.document.place}` : make("span", { className: "folder", textContent: ` · ${hit.document.folder}/` }));
  const link = make("a", { className: "open", href: href(open), ariaLabel: `${hit.document.name}, ${where.textContent}` }, name(hit.document.name), where);
  const text = make("div", { className: "text" }, lead(link, open));
  if (hit.snippet) text.append(make("p", { className: "snippet" }, ...marked(hit.snippet.text, hit.snippet.marks)));
  if (hit.copies.length) text.append(showCopies(hit.copies));
  element.append(thumbnail(hit.document, hit.page, corrected ?? at().get("q")), text);
  found.push(hit);
  $("hits").append(element);
}

function thumbnail(document, page, query = "") {
  const picture = make("img", { src: image(document, page, "small"), alt: "", loading: "lazy" });
  const sheet = make("span", { className: "sheet" }, picture);
  picture.addEventListener("error", () => sheet.classList.add("lost"));
  if (query) picture.addEventListener("load", async () => {
    const { boxes } = await call("/api/words", { query, document: document.id, page });
    sheet.append(...join(boxes).slice(0, BOXES).map(box));
  });
  return make("span", { className: "thumb" }, sheet);
}

function showCopies(copies) {
  const links = copies.slice(0, COPIES).flatMap(({ document, page }, i) => {
    const open = { open: spot(document, page) };
    const link = lead(make("a", { href: href(open), textContent: `${label(document)}, page ${page}` }), open);
    return i ? [", ", link] : [link];
  });
  const rest = copies.length > COPIES ? [` and ${plural(copies.length - COPIES, "other place")}`] : [];
  return make("p", { className: "twins" }, `and ${plural(copies.length, "identical page")} in `, ...links, ...rest);
}

const showUnknown = () => `No page ${names().some((one) => one !== "by") ? "with these filters " : ""}has ${unknown.map((word) => `"${word}"`).join(" or ")}`;

// -- when there is nothing to show

function showEmpty(title, ...parts) {
  $("empty").replaceChildren(make("h2", { textContent: title }), ...parts);
  $("empty").hidden = false;
}

const paragraph = (...parts) => make("p", {}, ...parts);
const code = (text) => make("code", { textContent: text });

async function explainEmpty() {
  say("The library is empty.");
  const status = await known;
  const index = paragraph(status.read_only ? "Fill it with " : "Or fill it from a folder with ", code("randslot index FOLDER"), ".");
  if (status.read_only) return showEmpty("Nothing to search yet", index);
  const choose = make("button", { type: "button", className: "main", textContent: "Choose files" });
  choose.addEventListener("click", () => $("files").click());
  showEmpty("Nothing to search yet", paragraph("Drop documents and images anywhere on this page."), choose, index);
}

async function explainNothing() {
  const filters = names().filter((one) => one !== "by");
  say(`No page found for "${at().get("q")}".`);
  if (filters.length) {
    const all = make("button", { type: "button", className: "main", textContent: "Search all documents" });
    all.addEventListener("click", () => { $("source").value = ""; clear(); });
    return showEmpty("Nothing found with these filters", all);
  }
  const status = await known;
  if (!status.pages) return explainEmpty();
  if (status.by === "words" && !status.pages_with_text) {
    return showEmpty("No page of this library has text",
      paragraph("Its pages are scans or pictures, and searches by words find nothing on them."),
      paragraph("OCR reads them: ", code('pip install "randslot[ocr]"'), ", then ", code("randslot library words"), "."));
  }
  const query = at().get("q");
  const tips = [...(unknown.length ? [`${showUnknown()}: is it spelled right?`] : []), "Try fewer or other words."];
  if (/["“”„«»]/.test(query)) tips.push("Leave out the quotes: they ask for exactly these words in this order.");
  if (/(^|\s)-\p{L}/u.test(query)) tips.push("Leave out words with a minus before them: pages with those are not shown.");
  const wordless = status.pages - status.pages_with_text;
  if (wordless) tips.push(`${plural(wordless, "page")} of this library ${wordless === 1 ? "has" : "have"} no text that could be found.`);
  showEmpty("Nothing found", make("ul", {}, ...tips.map((tip) => make("li", { textContent: tip }))));
}

// -- what people do

$("search").addEventListener("submit", (event) => {
  event.preventDefault();
  if ($("query").value.trim()) go({ q: $("query").value.trim(), in: $("source").value.trim(), open: "" });
});
$("query").addEventListener("search", () => { if (!$("query").value && at().has("q")) go({ q: "", open: "" }); });
whenNear($("more"), () => load().catch((error) => say(error.message, true)));

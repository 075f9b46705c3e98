// Show hits: the part of the page around the match, the text with marked words, one entry per document.

import { call } from "./api.js";
import { $, box, image, join, label, make, marked, name, part, plural } from "./dom.js";
import { href, lead } from "./route.js";

const SPAN = 0.56; // share of the page width in an excerpt, so that its text is legible
const MARGIN = 0.06; // share of the page width that is margin
const REACH = 0.14; // share of the page height above and below the match: more than is visible, as the aspect ratio is unknown
const WIDTH = 416; // of an excerpt, in CSS pixels
const COPIES = 3; // copies to list

export const spot = (document, page) => `${document.id}:${page}`;

const pictures = new Map(); // URL -> image, to reuse loaded images

const sheets = new Map(); // visible pages -> their excerpts, kept until those of the next search are loaded

export function forget() {
  for (const [place, sheet] of sheets) if (!sheet.isConnected) sheets.delete(place);
  for (const [address, picture] of pictures) {
    if (picture.isConnected) continue;
    stop(picture);
    pictures.delete(address);
  }
}

// A browser opens six connections per server: abort images that are no longer needed, so that they do not delay a search.
export function stop(picture) {
  if (!picture.complete) picture.removeAttribute("src");
}

function picture(address) {
  if (!pictures.has(address)) pictures.set(address, make("img", { src: address, alt: "", loading: "lazy", decoding: "async" }));
  return pictures.get(address);
}

let asked = {}; // the query whose words to mark

export const ask = (query) => { asked = query; };

// -- the part of a page around its best match, loaded near the viewport

// Where to center: the best match; for a passage, the start of a line near its top.
function target(hit) {
  const line = hit.passage[Math.floor(hit.passage.length / 8)];
  return hit.best ?? (line ? [line[0], line[1], Math.min(line[2], line[0] + SPAN / 2), line[3]] : null);
}

function frame(hit) {
  const seen = target(hit);
  if (!seen) return [MARGIN, 0, 1 - MARGIN, 2 * REACH]; // the top of the page
  const y = (seen[1] + seen[3]) / 2;
  const near = [...hit.boxes, ...hit.passage].filter((one) => Math.abs((one[1] + one[3]) / 2 - y) < REACH / 3);
  const first = Math.min(seen[0], ...near.map((one) => one[0])) - 0.1; // the left edge of nearby marks
  const left = Math.max(Math.min(first, 1 - MARGIN - SPAN), Math.min(seen[2] + 0.03, 1) - SPAN, 0);
  const top = Math.min(Math.max(y - REACH, 0), 1 - 2 * REACH);
  return [left, top, left + SPAN, top + 2 * REACH];
}

// Convert a box from page to frame coordinates.
const within = ([left, top, right, bottom], of) => {
  const [width, height] = [of[2] - of[0], of[3] - of[1]];
  return [(left - of[0]) / width, (top - of[1]) / height, (right - of[0]) / width, (bottom - of[1]) / height];
};
const isSeen = ([left, top, right, bottom]) => right > 0 && left < 1 && bottom > 0 && top < 1;

const waiting = new WeakMap(); // placeholders of excerpts -> functions that fill them
const near = new IntersectionObserver((seen) => {
  for (const { target } of seen.filter((one) => one.isIntersecting)) {
    near.unobserve(target);
    waiting.get(target)();
  }
}, { rootMargin: "300px" });

function excerpt(hit) {
  const view = make("span", { className: "view" });
  if (hit.gone) return lose(view);
  view.append(sheets.get(spot(hit.document, hit.page)) ?? "");
  const wanted = { ...asked, document: hit.document.id, page: hit.page, vector: hit.matches[0]?.page ?? 0 };
  waiting.set(view, async () => {
    const { boxes, best, passage } = hit.snippet ? await call("/api/words", wanted).catch(() => hit) : hit;
    Object.assign(hit, { boxes, best, passage });
    if (view.isConnected) fill(view, hit); // else it would use an image of a later search
  });
  near.observe(view);
  return view;
}

function fill(view, hit) {
  const shown = frame(hit);
  const shot = picture(part(hit.document, hit.page, shown, WIDTH));
  const sheet = make("span", { className: "sheet" }, shot);
  const marks = hit.boxes.length ? join(hit.boxes) : hit.passage;
  sheet.append(...marks.map((one) => within(one, shown)).filter(isSeen).map(box));
  sheet.classList.toggle("meant", !hit.boxes.length);
  const seen = target(hit);
  const middle = seen ? within(seen, shown) : [0, 0, 0, 0];
  const settle = () => { // center the match, within the image
    const height = (shot.naturalHeight / shot.naturalWidth) * view.clientWidth;
    const offset = ((middle[1] + middle[3]) / 2) * height - view.clientHeight / 2;
    sheet.style.top = `${-Math.max(Math.min(offset, height - view.clientHeight), 0)}px`;
    sheet.classList.add("there");
    view.replaceChildren(sheet);
  };
  shot.onload = settle;
  shot.onerror = () => lose(view);
  if (shot.complete && shot.naturalWidth) requestAnimationFrame(settle);
  view.append(sheet);
  sheets.set(spot(hit.document, hit.page), sheet);
}

function lose(view) {
  view.classList.add("lost");
  view.replaceChildren(make("span", { textContent: "No image: the file was deleted or has changed" }));
  return view;
}

// -- a hit, and others of its document

const pageOf = ({ document, page }) => `page ${page.toLocaleString("en")} of ${document.pages.toLocaleString("en")}`;

function tags(hit) {
  const ways = hit.snippet?.marks.length ? [] : [hit.by !== "words" && "meaning", ...["name", "folder"].map((one) => hit.fields.includes(one) && `its ${one}`)].filter(Boolean);
  const made = ways.length ? [`found by ${ways.join(" and ")}`] : [];
  if (hit.gone) made.push("the file is no longer on disk");
  return made.map((text) => make("span", { className: "tag", textContent: text }));
}

export function show(hit) {
  const open = { open: spot(hit.document, hit.page) };
  const { document: file } = hit;
  const where = make("span", { className: "where" }, pageOf(hit),
    file.place ? ` · in ${file.place}` : make("span", { className: "folder", textContent: ` · ${file.folder}/` }), ...tags(hit));
  const link = lead(make("a", { className: "open", href: href(open) }, name(file.name), where), open);
  const text = make("div", { className: "text" }, link);
  if (hit.snippet) text.append(make("p", { className: "snippet" }, ...marked(hit.snippet.text, hit.snippet.marks)));
  if (hit.copies.length) text.append(showCopies(hit.copies));
  return make("li", {}, excerpt(hit), text);
}

// The other hits of a document, behind a button below the first.
export function showOthers(element, hits) {
  const before = element.querySelector(".others");
  const isOpen = before?.querySelector("button").ariaExpanded === "true";
  const list = make("ol", { hidden: !isOpen }, ...hits.map(showRow));
  const button = make("button", { type: "button", ariaExpanded: String(isOpen), textContent: `${hits.length} more in this document` });
  button.addEventListener("click", () => {
    list.hidden = !list.hidden;
    button.ariaExpanded = String(!list.hidden);
  });
  const made = make("div", { className: "others" }, button, list);
  before ? before.replaceWith(made) : element.querySelector(".open").after(made);
}

function showRow(hit) {
  const open = { open: spot(hit.document, hit.page) };
  const text = make("span", { className: "snippet" }, ...(hit.snippet ? marked(hit.snippet.text, hit.snippet.marks) : []));
  return make("li", {}, lead(make("a", { className: "row", href: href(open) },
    make("span", { className: "where", textContent: `p. ${hit.page}` }), text), open));
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

// -- thumbnails of pages: for documents, and for similar pages

export function cover(document, page = 1) {
  const shot = make("img", { src: image(document, page, "small"), alt: "", loading: "lazy" });
  const sheet = make("span", { className: "sheet" }, shot);
  shot.addEventListener("error", () => sheet.classList.add("lost"));
  const about = page === 1 ? plural(document.pages, "page") : pageOf({ document, page });
  const where = make("span", { className: "where", textContent: about + (document.place ? ` · in ${document.place}` : "") });
  const open = { open: spot(document, page) };
  const link = make("a", { href: href(open) }, make("span", { className: "thumb" }, sheet), name(document.name), where);
  return make("li", {}, lead(link, open));
}

window.addEventListener("resize", () => { for (const shot of $("hits").querySelectorAll(".view img")) if (shot.naturalWidth) shot.onload?.(); });

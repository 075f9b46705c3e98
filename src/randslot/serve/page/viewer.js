// The page viewer: selectable text, marked matches, zoom and rotation, its document, the other hits.

import { call } from "./api.js";
import { $, box, image, join, keep, kept, label, name, place, rested } from "./dom.js";
import { only } from "./filters.js";
import { isTyping } from "./keys.js";
import { cite, clearLayer, showLayer } from "./layer.js";
import { at, go } from "./route.js";
import { corrected, find, found, loadMore, total } from "./search.js";
import { closeStrip, matches, showStrip } from "./strip.js";
import { remember } from "./suggest.js";
import { explain, hideWhy, showSimilar } from "./why.js";

const ZOOMS = [0.5, 0.75, 1, 1.25, 1.5, 2, 2.5, 3, 4, 6];
const SHARPER = 1100; // width in pixels above which the default image is not sharp enough
const WIDEST = 1100; // maximum width in pixels of a page fitted to the width

let opened = null; // document, page, the marked query, and the marks
let fitted = kept("fit", "width"); // "width" or "page"
let zoom = 1;
let turns = 0; // clockwise quarter turns
let match = -1; // index of the current mark
let wanted = 0; // the mark to show once loaded: 0 for the best, 1 for the first, -1 for the last
let sought = ""; // the text to find in this document, instead of the query
let hasVectors = () => false;

export const know = (status) => { hasVectors = () => status.model !== null; };

export async function open() {
  const [id, page] = (at().get("open") ?? "").split(":");
  if (!id) {
    opened = null;
    closeStrip();
    if ($("viewer").open) $("viewer").close();
    return;
  }
  const document = opened?.document.id === id ? opened.document : await call(`/api/documents/${encodeURIComponent(id)}`);
  if (!(at().get("open") ?? "").startsWith(id)) return;
  const number = Math.min(Math.max(Number(page) || 1, 1), document.pages);
  if (opened?.document.id !== id) {
    sought = $("find-here").value = "";
    turns = 0;
  }
  const query = sought || (corrected ?? at().get("q") ?? "");
  if (opened?.document.id === id && opened.page === number && opened.query === query) return;
  const isSamePage = opened?.document.id === id && opened.page === number;
  opened = { document, page: number, query, marks: [] };
  if (!$("viewer").open) {
    $("viewer").showModal();
    $("stage").focus({ preventScroll: true });
    remember();
  }
  isSamePage ? $("marks").replaceChildren() : showPage();
  showStrip(document, number, query).catch(() => {}).then(showMatch);
  await mark();
}

function showPage() {
  const { document, page } = opened;
  $("viewer-title").replaceChildren(name(document.name), ...place(document));
  $("viewer-title").ariaLabel = `${label(document)}, page ${page} of ${document.pages}`;
  $("viewer-title").title = [document.title, document.author, document.date].filter(Boolean).join(" · ");
  showGone(false);
  $("sheet").classList.add("loading"); // marks have no position until the page has its size
  $("large").src = image(document, page, "large");
  $("large").alt = `${document.name}, page ${page}`;
  $("marks").replaceChildren();
  clearLayer();
  showLayer(document, page).catch(() => {});
  $("file").href = document.file + (/\.pdf$/i.test(document.name) ? `#page=${page}` : "");
  $("only").hidden = !at().get("q") || Object.entries(only(document)).every(([key, value]) => at().get(key) === value) || document.pages < 2;
  setZoom(1);
  $("stage").scrollTo(0, 0);
  showResult();
  showSimilar(document, page);
}

function showGone(gone) {
  $("gone").hidden = !gone;
  $("turned").hidden = gone;
}

// -- zoom: the sheet is resized, and the stage scrolls

function fit() {
  const { naturalWidth: width, naturalHeight: height } = $("large");
  if (!width || !opened) return;
  const stage = $("stage");
  const style = getComputedStyle(stage);
  const room = [stage.clientWidth - 2 * parseFloat(style.paddingLeft), stage.clientHeight - 2 * parseFloat(style.paddingTop)];
  const shape = turns % 2 ? height / width : width / height; // as rotated
  const narrow = matchMedia("(max-width: 52rem)").matches; // the stage is as high as the page
  const whole = narrow ? room[0] : fitted === "width" ? Math.min(room[0], WIDEST) : Math.min(room[0], room[1] * shape);
  const seen = Math.round(whole * zoom);
  const now = turns % 2 ? seen / shape : seen;
  Object.assign($("turned").style, { width: `${seen}px`, height: `${Math.round(seen / shape)}px` });
  Object.assign($("sheet").style, { width: `${now}px`, transform: ["none", "rotate(90deg) translateY(-100%)", "rotate(180deg) translate(-100%, -100%)", "rotate(270deg) translateX(-100%)"][turns] });
  const dense = now * Math.min(devicePixelRatio, 2);
  if (dense > Math.max(width, SHARPER) && !$("large").src.endsWith("full")) sharpen().catch(() => {});
}

async function sharpen() {
  const { document, page } = opened;
  const sharp = new Image();
  sharp.src = image(document, page, "full");
  await sharp.decode();
  if (opened?.document === document && opened.page === page) $("large").src = sharp.src;
}

// The fixed point of zooming: the pointer, else the current match or the one nearest to the center, else the center. A
// match outside the viewport moves to the center.
function anchor(pointer) {
  const view = $("stage").getBoundingClientRect();
  const middle = [view.left + view.width / 2, view.top + view.height / 2];
  if (pointer) return { from: [pointer.clientX, pointer.clientY], to: [pointer.clientX, pointer.clientY] };
  const marks = (opened?.marks ?? []).map((made) => made.getBoundingClientRect()).map((one) => [one.left + one.width / 2, one.top + one.height / 2]);
  const seen = ([x, y]) => x >= view.left && x <= view.right && y >= view.top && y <= view.bottom;
  const far = ([x, y]) => Math.hypot(x - middle[0], y - middle[1]);
  const from = marks[match] ?? marks.filter(seen).sort((one, other) => far(one) - far(other))[0] ?? middle;
  return { from, to: seen(from) ? from : middle };
}

function setZoom(value, pointer = null) {
  const { from, to } = anchor(pointer);
  const before = $("sheet").getBoundingClientRect();
  zoom = value;
  $("zoom-fit").textContent = zoom !== 1 ? `${Math.round(zoom * 100)}%` : fitted === "width" ? "Width" : "Page";
  $("zoom-out").disabled = zoom <= ZOOMS[0];
  $("zoom-in").disabled = zoom >= ZOOMS.at(-1);
  fit();
  if (!before.width || !before.height) return;
  const after = $("sheet").getBoundingClientRect();
  const x = after.left + ((from[0] - before.left) / before.width) * after.width;
  const y = after.top + ((from[1] - before.top) / before.height) * after.height;
  $("stage").scrollBy(x - to[0], y - to[1]);
}

function zoomBy(step, pointer = null) {
  const next = step > 0 ? ZOOMS.find((one) => one > zoom) : ZOOMS.findLast((one) => one < zoom);
  if (next) setZoom(next, pointer);
}

function changeFit() {
  if (zoom === 1) keep("fit", fitted = fitted === "width" ? "page" : "width");
  setZoom(1);
}

function rotate() {
  turns = (turns + 1) % 4;
  fit();
}

// -- matches

async function mark() {
  const asking = opened;
  const { document, page, query } = asking;
  match = -1;
  $("match-tools").hidden = true;
  if (!query) return hideWhy();
  const asked = { query, document: document.id, page };
  const { hit } = find(document, page);
  const words = await call("/api/words", { ...asked, vector: hit?.matches[0]?.page ?? 0 });
  if (opened !== asking) return;
  const boxes = join(words.boxes);
  opened.marks = boxes.map(box);
  const meant = (sought ? [] : words.passage).map(box);
  for (const one of meant) one.classList.add("meant");
  $("marks").replaceChildren(...meant, ...opened.marks);
  sought ? hideWhy() : explain(asked, words, hit, hasVectors());
  showMatch();
  const best = words.best ? boxes.findIndex(([left, top, right, bottom]) => words.best[0] >= left - 0.001 && words.best[2] <= right + 0.001 && words.best[1] >= top - 0.001 && words.best[3] <= bottom + 0.001) : 0;
  if (opened.marks.length) goToMatch(wanted > 0 ? 0 : wanted < 0 ? opened.marks.length - 1 : Math.max(best, 0));
  else showPassage();
  wanted = 0;
}

function goToMatch(number) {
  opened.marks[match]?.classList.remove("now");
  match = number;
  opened.marks[match].classList.add("now");
  opened.marks[match].scrollIntoView({ block: "center", inline: "center" });
  showMatch();
}

function showPassage() {
  $("marks").querySelector(".meant")?.scrollIntoView({ block: "center" });
}

function showMatch() {
  const count = opened?.marks.length ?? 0;
  $("match-tools").hidden = !count && !sought;
  $("match-place").textContent = !count ? (sought && !matches.length ? "not found" : "none here") : `${Math.max(match, 0) + 1} of ${count}`;
}

// Go to the next mark on this page; after the last one, to the next hit, in this document or another.
function stepMatch(step) {
  const next = match + step;
  if (next >= 0 && next < opened.marks.length) return goToMatch(next);
  if (!sought) return stepResult(step, step);
  const page = step > 0 ? matches.find((one) => one > opened.page) : matches.findLast((one) => one < opened.page);
  if (!page) return;
  wanted = step;
  go({ open: `${opened.document.id}:${page}` }, true);
}

// Find words in this document; without any, show those of the search again.
async function seek() {
  if (!opened || sought === $("find-here").value.trim()) return;
  sought = $("find-here").value.trim();
  const here = opened;
  await open();
  if (!sought || opened?.document !== here.document) return;
  await showStrip(opened.document, opened.page, sought);
  if (opened?.document === here.document && !opened.marks.length && matches.length) {
    go({ open: `${opened.document.id}:${matches.find((one) => one >= opened.page) ?? matches[0]}` }, true);
  }
}

// -- results and neighbours

function showResult() {
  const { rank } = find(opened.document, opened.page);
  $("result-tools").hidden = !found.length;
  $("result-place").textContent = rank < 0 ? "not a result" : `Result ${rank + 1} of ${total()}`;
  $("result-before").disabled = rank <= 0;
}

async function stepResult(step, then = 0) {
  let { rank } = find(opened.document, opened.page);
  if (rank < 0 && step < 0) return;
  rank += step;
  if (rank >= found.length && !(await loadMore().catch(() => false))) return;
  const hit = found[rank];
  if (!hit) return;
  wanted = then;
  go({ open: `${hit.document.id}:${hit.page}` }, true);
}

function turn(step) {
  const page = opened.page + step;
  if (page >= 1 && page <= opened.document.pages) go({ open: `${opened.document.id}:${page}` }, true);
}

async function copy() {
  tell(await cite(opened.document, opened.page));
}

const quiet = rested(3000, () => { $("told").hidden = true; });

export function tell(text) {
  $("told").textContent = text;
  $("told").hidden = false;
  quiet();
}

async function print() {
  await sharpen().catch(() => {});
  await $("large").decode().catch(() => {});
  window.print();
}

// -- events

const KEYS = {
  ArrowLeft: () => turn(-1), ArrowRight: () => turn(1), n: () => stepMatch(1), p: () => stepMatch(-1), j: () => stepResult(1), k: () => stepResult(-1),
  "+": () => zoomBy(1), "=": () => zoomBy(1), "-": () => zoomBy(-1), 0: changeFit, r: rotate, c: copy,
};

$("viewer").addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !opened) return;
  if (event.key === "Escape" && isTyping(event)) { // leave the field, not the page
    event.preventDefault();
    $("find-here").value = "";
    seek();
    return $("stage").focus({ preventScroll: true });
  }
  const sideways = event.key.startsWith("Arrow") && $("stage").scrollWidth > $("stage").clientWidth + 1;
  if (isTyping(event) || !KEYS[event.key] || (sideways && document.activeElement === $("stage"))) return; // arrow keys scroll a zoomed page
  event.preventDefault();
  KEYS[event.key]();
});
for (const [id, act] of Object.entries({
  close: () => $("viewer").close(), before: () => turn(-1), after: () => turn(1), "zoom-in": () => zoomBy(1),
  "zoom-out": () => zoomBy(-1), "zoom-fit": changeFit, "match-before": () => stepMatch(-1), "match-after": () => stepMatch(1),
  "result-before": () => stepResult(-1), "result-after": () => stepResult(1), only: () => go({ ...only(opened.document), open: "" }),
  rotate, cite: copy, print,
})) $(id).addEventListener("click", act);
$("find-here").addEventListener("input", rested(250, () => seek().catch(() => {})));
$("find-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sought && sought === $("find-here").value.trim() ? stepMatch(1) : seek().catch(() => {});
});
$("page-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const page = Math.min(Math.max(Number.parseInt($("page-number").value, 10) || opened.page, 1), opened.document.pages);
  $("page-number").value = page;
  go({ open: `${opened.document.id}:${page}` }, true);
  $("stage").focus({ preventScroll: true });
});
$("viewer").addEventListener("close", () => { if (at().get("open")) go({ open: "" }, true); });
$("large").addEventListener("load", () => {
  const first = $("sheet").classList.contains("loading");
  $("sheet").classList.remove("loading");
  fit();
  if (opened && first) match >= 0 ? goToMatch(match) : showPassage(); // the viewer may have been closed meanwhile
});
$("large").addEventListener("error", () => { if (opened) showGone(true); });
new ResizeObserver(fit).observe($("stage"));
$("stage").addEventListener("wheel", (event) => {
  if (!event.ctrlKey) return;
  event.preventDefault();
  zoomBy(-Math.sign(event.deltaY), event);
}, { passive: false });
$("large").addEventListener("dragstart", (event) => event.preventDefault());

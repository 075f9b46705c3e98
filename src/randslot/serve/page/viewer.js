// One page, large: zoom, the matches marked on it, its neighbours, and the other pages that were found.

import { call } from "./api.js";
import { $, box, image, join, name, place } from "./dom.js";
import { only } from "./filters.js";
import { at, go } from "./route.js";
import { find, found, loadMore } from "./search.js";
import { explain, hideWhy } from "./why.js";

const ZOOMS = [1, 1.25, 1.5, 2, 2.5, 3, 4, 6];
const SHARPER = 1100; // pixels of width from which on the large image is not sharp enough

let opened = null; // document, page, and the marks on it
let zoom = 1;
let match = -1; // the mark that one is at
let wanted = 0; // the mark to go to when they are there: 0 for none yet, 1 for the first, -1 for the last
let hasVectors = () => false;

export const know = (status) => { hasVectors = () => status.model !== null; };

export async function open() {
  const [id, page] = (at().get("open") ?? "").split(":");
  if (!id) {
    opened = null;
    if ($("viewer").open) $("viewer").close();
    return;
  }
  const document = opened?.document.id === id ? opened.document : await call(`/api/documents/${encodeURIComponent(id)}`);
  if (!(at().get("open") ?? "").startsWith(id)) return;
  const number = Math.min(Math.max(Number(page) || 1, 1), document.pages);
  const query = at().get("q") ?? "";
  if (opened?.document.id === id && opened.page === number && opened.query === query) return;
  opened = { document, page: number, query, marks: [] };
  if (!$("viewer").open) {
    $("viewer").showModal();
    $("stage").focus({ preventScroll: true });
  }
  showPage();
  await mark();
}

function showPage() {
  const { document, page } = opened;
  $("viewer-title").replaceChildren(name(document.name), ...place(document), `, page ${page} of ${document.pages}`);
  $("viewer-title").ariaLabel = $("viewer-title").textContent;
  showGone(false);
  $("sheet").classList.add("loading"); // marks have no place until the page has its size
  $("large").src = image(document, page, "large");
  $("large").alt = `${document.name}, page ${page}`;
  $("marks").replaceChildren();
  $("file").href = document.file + (/\.pdf$/i.test(document.name) ? `#page=${page}` : "");
  $("only").hidden = !opened.query || Object.entries(only(document)).every(([key, value]) => at().get(key) === value) || document.pages < 2;
  setZoom(1);
  $("stage").scrollTo(0, 0);
  for (const [button, number] of [[$("before"), page - 1], [$("after"), page + 1]]) {
    button.disabled = number < 1 || number > document.pages;
    const thumbnail = button.querySelector("img");
    button.disabled ? thumbnail.removeAttribute("src") : (thumbnail.src = image(document, number, "small"));
  }
  showResult();
}

function showGone(gone) {
  $("gone").hidden = !gone;
  $("sheet").hidden = gone;
}

// -- zoom: the sheet is as wide as it must be, and the stage scrolls

function fit() {
  const { naturalWidth: width, naturalHeight: height } = $("large");
  if (!width || !opened) return;
  const stage = $("stage");
  const style = getComputedStyle(stage);
  const room = [stage.clientWidth - 2 * parseFloat(style.paddingLeft), stage.clientHeight - 2 * parseFloat(style.paddingTop)];
  const narrow = matchMedia("(max-width: 52rem)").matches; // the stage is as high as the page is there
  const whole = narrow ? room[0] : Math.min(room[0], (room[1] * width) / height);
  const now = Math.round(whole * zoom);
  $("sheet").style.width = `${now}px`;
  const dense = now * Math.min(devicePixelRatio, 2);
  if (dense > Math.max(width, SHARPER) && !$("large").src.endsWith("full")) sharpen();
}

function sharpen() {
  const { document, page } = opened;
  const sharp = new Image();
  sharp.src = image(document, page, "full");
  sharp.decode().then(() => {
    if (opened?.document === document && opened.page === page) $("large").src = sharp.src;
  }).catch(() => {});
}

// What stays in its place while the page grows: what the pointer is on, else the match that one is at or the one nearest
// to the middle, else the middle. A match that is out of sight comes into the middle.
function anchor(pointer) {
  const view = $("stage").getBoundingClientRect();
  const middle = [view.left + view.width / 2, view.top + view.height / 2];
  if (pointer) return { from: [pointer.clientX, pointer.clientY], to: [pointer.clientX, pointer.clientY] };
  const marks = opened.marks.map((made) => made.getBoundingClientRect()).map((one) => [one.left + one.width / 2, one.top + one.height / 2]);
  const seen = ([x, y]) => x >= view.left && x <= view.right && y >= view.top && y <= view.bottom;
  const far = ([x, y]) => Math.hypot(x - middle[0], y - middle[1]);
  const from = marks[match] ?? marks.filter(seen).sort((one, other) => far(one) - far(other))[0] ?? middle;
  return { from, to: seen(from) ? from : middle };
}

function setZoom(value, pointer = null) {
  const { from, to } = anchor(pointer);
  const before = $("sheet").getBoundingClientRect();
  zoom = value;
  $("zoom-fit").textContent = zoom === 1 ? "Fit" : `${Math.round(zoom * 100)}%`;
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

// -- matches

async function mark() {
  const asking = opened;
  const { document, page, query } = asking;
  match = -1;
  $("match-tools").hidden = true;
  if (!query) return hideWhy();
  const asked = { query, document: document.id, page };
  const words = await call("/api/words", asked);
  if (opened !== asking) return;
  opened.marks = join(words.boxes).map(box);
  $("marks").replaceChildren(...opened.marks);
  const { hit, rank } = find(document, page);
  explain(asked, words, hit, rank + 1, hasVectors());
  $("match-tools").hidden = !opened.marks.length;
  if (wanted && opened.marks.length) goToMatch(wanted > 0 ? 0 : opened.marks.length - 1);
  else showMatch();
  wanted = 0;
}

function goToMatch(number) {
  opened.marks[match]?.classList.remove("now");
  match = number;
  opened.marks[match].classList.add("now");
  opened.marks[match].scrollIntoView({ block: "center", inline: "center" });
  showMatch();
}

function showMatch() {
  const count = opened.marks.length;
  $("match-place").textContent = match < 0 ? `${count} ${count === 1 ? "match" : "matches"}` : `${match + 1} of ${count}`;
}

// The next mark of this page; after the last one, the first of the next page that was found.
function stepMatch(step) {
  const next = match < 0 && step < 0 ? -1 : match + step;
  if (next >= 0 && next < opened.marks.length) goToMatch(next);
  else stepResult(step, step);
}

// -- results and neighbours

function showResult() {
  const { rank } = find(opened.document, opened.page);
  $("result-tools").hidden = !found.length;
  $("result-place").textContent = rank < 0 ? "not a result" : `Result ${rank + 1}`;
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

// -- what people do

const KEYS = {
  ArrowLeft: () => turn(-1), ArrowRight: () => turn(1), n: () => stepMatch(1), p: () => stepMatch(-1), j: () => stepResult(1),
  k: () => stepResult(-1), "+": () => zoomBy(1), "=": () => zoomBy(1), "-": () => zoomBy(-1), 0: () => setZoom(1),
};

$("viewer").addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !opened) return;
  const sideways = event.key.startsWith("Arrow") && $("stage").scrollWidth > $("stage").clientWidth + 1;
  if (!KEYS[event.key] || (sideways && document.activeElement === $("stage"))) return; // a page that is zoomed in is moved
  event.preventDefault();
  KEYS[event.key]();
});
for (const [id, act] of Object.entries({
  close: () => $("viewer").close(), before: () => turn(-1), after: () => turn(1), "zoom-in": () => zoomBy(1),
  "zoom-out": () => zoomBy(-1), "zoom-fit": () => setZoom(1), "match-before": () => stepMatch(-1), "match-after": () => stepMatch(1),
  "result-before": () => stepResult(-1), "result-after": () => stepResult(1), only: () => go({ ...only(opened.document), open: "" }),
})) $(id).addEventListener("click", act);
$("viewer").addEventListener("close", () => { if (at().get("open")) go({ open: "" }, true); });
$("viewer").addEventListener("click", (event) => { if (event.target === $("viewer")) $("viewer").close(); });
$("large").addEventListener("load", () => {
  const first = $("sheet").classList.contains("loading");
  $("sheet").classList.remove("loading");
  fit();
  if (first && match >= 0) goToMatch(match);
});
$("large").addEventListener("error", () => { if (opened) showGone(true); });
new ResizeObserver(fit).observe($("stage"));
$("stage").addEventListener("dblclick", (event) => setZoom(zoom > 1 ? 1 : 2, event));
$("stage").addEventListener("wheel", (event) => {
  if (!event.ctrlKey) return;
  event.preventDefault();
  zoomBy(-Math.sign(event.deltaY), event);
}, { passive: false });
$("stage").addEventListener("pointermove", (event) => { // a mouse drags the page, a finger scrolls by itself
  if (event.pointerType !== "mouse" || event.buttons !== 1) return;
  $("stage").scrollBy(-event.movementX, -event.movementY);
});
$("large").addEventListener("dragstart", (event) => event.preventDefault());

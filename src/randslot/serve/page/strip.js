// Thumbnails of all pages of the open document, with matches marked; and its outline.

import { call } from "./api.js";
import { $, image, make } from "./dom.js";
import { go } from "./route.js";

const MOST = 100; // maximum number of pages with matches to mark

let shown = null; // ID of the document
let asked = 0;
export let matches = []; // pages of the document with matches, in order

const button = (page) => $("pages").children[page - 1]?.firstElementChild;

export async function showStrip(document, page, query) {
  const number = ++asked;
  if (shown !== document.id) {
    shown = document.id;
    fill(document);
    showOutline(document, number);
  }
  at(page, document);
  await findMatches(document, query, number);
}

export function closeStrip() {
  asked++;
  shown = null;
  matches = [];
}

function fill(document) {
  $("strip").hidden = document.pages < 2;
  $("pages").replaceChildren(...Array.from({ length: document.pages }, (_, i) => {
    const sheet = make("span", { className: "sheet" }, make("img", { src: image(document, i + 1, "small"), alt: "", loading: "lazy" }));
    const made = make("button", { type: "button", ariaLabel: `Page ${i + 1}` }, sheet, make("span", { textContent: i + 1 }));
    made.addEventListener("click", () => go({ open: `${document.id}:${i + 1}` }, true));
    return make("li", {}, made);
  }));
}

function at(page, document) {
  $("page-number").value = page;
  $("page-total").textContent = `of ${document.pages.toLocaleString("en")}`;
  $("before").disabled = page <= 1;
  $("after").disabled = page >= document.pages;
  $("pages").querySelector("[aria-current]")?.removeAttribute("aria-current");
  const now = button(page);
  now?.setAttribute("aria-current", "page");
  now?.scrollIntoView({ block: "nearest", inline: "nearest" });
  const entries = [...$("outline").querySelectorAll("button")];
  const entry = entries.findLast((one) => Number(one.dataset.page) <= page);
  for (const one of entries) one === entry ? one.setAttribute("aria-current", "true") : one.removeAttribute("aria-current");
}

async function findMatches(document, query, number) {
  const hits = query && document.pages > 1
    ? (await call("/api/search", { query, within: document.id, k: MOST, by: "words", verbatim: true }).catch(() => ({ hits: [] }))).hits : [];
  if (number !== asked) return;
  matches = hits.filter((hit) => hit.fields.includes("text")).map((hit) => hit.page).sort((one, other) => one - other);
  for (const old of $("pages").querySelectorAll(".has")) old.classList.remove("has");
  for (const page of matches) {
    button(page)?.classList.add("has");
    if (button(page)) button(page).ariaLabel = `Page ${page}, has matches`;
  }
}

// -- outline

async function showOutline(document, number) {
  const { entries } = await call(`/api/documents/${document.id}/outline`).catch(() => ({ entries: [] }));
  if (shown !== document.id) return;
  $("strip-tabs").hidden = !entries.length;
  if (!entries.length) tab("pages");
  $("outline").replaceChildren(...entries.map(({ level, title, page }) => {
    const made = make("button", { type: "button" }, make("span", { textContent: title }), make("small", { textContent: page }));
    made.style.paddingLeft = `${0.4 + Math.min(level, 4) * 0.7}rem`;
    made.dataset.page = page;
    made.addEventListener("click", () => go({ open: `${document.id}:${page}` }, true));
    return make("li", {}, made);
  }));
  if (number === asked) at(Number($("page-number").value), document);
}

function tab(name) {
  for (const one of ["pages", "outline"]) {
    $(one).hidden = one !== name;
    $(`show-${one}`).ariaPressed = String(one === name);
  }
}

$("show-pages").addEventListener("click", () => tab("pages"));
$("show-outline").addEventListener("click", () => tab("outline"));

// Suggestions: words and names of the library, and searches saved in this browser.

import { call } from "./api.js";
import { $, keep, kept, make } from "./dom.js";
import { at, go, href, lead } from "./route.js";

const RECENT = 8;

let asked = 0;

const last = (text) => text.match(/[\p{L}\p{N}_-]{2,}$/u)?.[0] ?? "";

// A saved search: the URL without the open page.
function here() {
  const now = at();
  for (const key of ["open", "view"]) now.delete(key);
  return now.toString();
}

function describe(address) {
  const parts = new URLSearchParams(address);
  const filters = [...parts].filter(([key]) => !["q", "by", "sort", "verbatim"].includes(key)).map(([, value]) => value);
  return [parts.get("q"), ...filters].join(" · ");
}

export function remember() {
  const now = here();
  if (!at().get("q")) return;
  const query = at().get("q");
  const others = kept("recent", []).filter((one) => one !== now && new URLSearchParams(one).get("q") !== query);
  keep("recent", [now, ...others].slice(0, RECENT));
}

export function showSaved() {
  const isSaved = kept("saved", []).includes(here());
  $("save").hidden = !at().get("q");
  $("save").ariaPressed = String(isSaved);
  $("save").ariaLabel = "Save search";
  $("save").replaceChildren(isSaved ? "★" : "☆", make("span", { className: "wide", textContent: isSaved ? " Saved" : " Save search" }));
}

$("save").addEventListener("click", () => {
  const saved = kept("saved", []);
  keep("saved", saved.includes(here()) ? saved.filter((one) => one !== here()) : [here(), ...saved]);
  showSaved();
});

// -- the row below the search field

export async function suggest() {
  const number = ++asked;
  const text = $("query").value;
  if (!text.trim()) return show(searches());
  const word = last(text);
  if (!word) return show([]);
  const { words, names } = await call(`/api/complete?prefix=${encodeURIComponent(word)}`);
  if (number !== asked || $("query").value !== text) return;
  const completed = words.filter((one) => one !== word.toLowerCase()).slice(0, 5).map((one) => button(one, () => {
    $("query").value = text.slice(0, text.length - word.length) + one;
    $("query").focus();
    $("query").dispatchEvent(new Event("input", { bubbles: true }));
  }));
  const documents = names.slice(0, 3).map((one) => button(one, () => go({ in: one, q: text.slice(0, text.length - word.length).trim() || text.trim(), open: "" }), "name", `Look in ${one}`));
  show([...completed, ...documents]);
}

const button = (text, act, kind = "", title = "") => {
  const made = make("button", { type: "button", className: kind, textContent: text, title });
  made.addEventListener("click", act);
  return made;
};

function searches() {
  const made = [];
  const saved = kept("saved", []);
  for (const [title, list] of [["Saved", saved], ["Recent", kept("recent", []).filter((one) => !saved.includes(one))]]) {
    if (list.length) made.push(make("span", { textContent: title }));
    made.push(...list.slice(0, RECENT).map((address) => {
      const link = make("a", { href: `?${address}`, textContent: describe(address) });
      return lead(link, `?${address}`);
    }));
  }
  if (kept("recent", []).length) made.push(button("Forget", () => { keep("recent", []); show(searches()); }, "forget", "Forget recent searches"));
  return made;
}

function show(made) {
  $("suggestions").replaceChildren(...made);
}

export const hide = () => { asked++; show($("query").value.trim() ? [] : searches()); };

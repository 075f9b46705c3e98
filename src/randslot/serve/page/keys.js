// Keyboard shortcuts: those of the list of hits, and the help table.

import { $, make } from "./dom.js";

const KEYS = [
  ["/", "Go to the search field; in a page, find in its document"], ["j, k", "Next and previous hit"], ["Enter", "Open the hit"],
  ["n, p", "Next and previous match in a page"], ["←, →", "Previous and next page"], ["+, -, 0", "Zoom in, out, and fit"],
  ["r", "Rotate the page"], ["c", "Copy the selection with its source"], ["Esc", "Close, or leave the field"], ["?", "Show these keys"],
];

export const isTyping = (event) => event.target.matches?.("input:not([type=file]), select, textarea");

export function showKeys() {
  $("keys").querySelector("dl").replaceChildren(...KEYS.flatMap(([key, text]) => [make("dt", {}, make("kbd", { textContent: key })), make("dd", { textContent: text })]));
  $("keys").showModal();
}

function step(by) {
  const links = [...document.querySelectorAll("#hits a:is(.open, .row), #hits.covers a")].filter((one) => one.checkVisibility());
  const now = links.indexOf(document.activeElement);
  const next = links[now < 0 ? (by > 0 ? 0 : -1) : now + by];
  next?.focus();
  next?.closest("li").scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target === $("query") && event.key === "ArrowDown") { event.preventDefault(); return step(1); }
  if (event.target === $("query") && event.key === "Escape" && !$("query").value) return $("query").blur();
  if (isTyping(event) || document.querySelector("dialog[open]:not(#viewer)")) return;
  const isOpen = $("viewer").open;
  const act = { "?": showKeys, "/": () => { const field = $(isOpen ? "find-here" : "query"); field.focus(); field.select(); } }[event.key]
    ?? (!isOpen && !$("search-view").hidden ? { j: () => step(1), k: () => step(-1) }[event.key] : null);
  if (!act) return;
  event.preventDefault();
  act();
});
$("help").addEventListener("click", showKeys);

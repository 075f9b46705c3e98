// Why this page: in words; for researchers, scores and the matrix of readouts. Also similar pages.

import { call } from "./api.js";
import { $, make, ordinal } from "./dom.js";
import { chosen } from "./filters.js";
import { cover } from "./hits.js";

const MOST = 12; // maximum columns of the matrix; with more readouts, only the winners are shown
const SCORES = { words: "Score by words (BM25)", vectors: "Score by vectors (MaxSim)", both: "Score by words and vectors, normalised" };
const FIELDS = { name: "its name", folder: "its folder", title: "its title", section: "the title of its section", heading: "a heading" };

let now = null; // the explained page: the request, the hit if it is one, its index among the hits
let like = ""; // the page whose similar pages are shown

export function explain(asked, words, hit, hasVectors) {
  now = { asked, hit, hasVectors };
  $("why").hidden = false;
  const place = hit ? `It ranks ${ordinal(hit.rank)} among the pages found.` : "It is not among the pages found so far.";
  $("why-text").textContent = [told(words.words, hit), place].filter(Boolean).join(" ");
  $("why-words").replaceChildren(...words.words.filter(({ count }) => count).map(chip));
  $("why-score").textContent = hit ? `${SCORES[hit.by]}: ${hit.score.toFixed(2)}. Compare it within this search only.` : "";
  $("why-ranks").textContent = "";
  $("vectors").hidden = !hit && !hasVectors;
  $("readouts").hidden = !hasVectors;
  $("matrix").replaceChildren();
  $("sum").textContent = "";
  if ($("vectors").open) showDetails();
}

export function hideWhy() {
  now = null;
  $("why").hidden = true;
}

function told(words, hit) {
  const there = words.filter(({ count }) => count);
  const fields = (hit?.fields ?? []).filter((one) => FIELDS[one]).map((one) => FIELDS[one]);
  const also = fields.length ? ` Some are in ${new Intl.ListFormat("en").format(fields)}.` : "";
  if (!words.length) return "";
  if (!there.length) return `${hit && hit.by !== "words" ? "Found by meaning: none" : "None"} of the words is on this page as text.${also}`;
  if (there.length === words.length) return `${words.length === 1 ? "The word is" : "All of the words are"} on this page.${also}`;
  return `${there.length} of ${words.length} words are on this page.${also}`;
}

function chip({ word, count }) {
  const often = count === 1 ? "once" : count === 2 ? "twice" : `${count} times`;
  return make("li", {}, make("mark", { textContent: word }), ` ${often}`);
}

// -- details for researchers

function showDetails() {
  if (!now) return;
  if (now.hit?.by === "both" && !$("why-ranks").textContent) rankBoth(now);
  if (now.hasVectors) compare(now);
}

async function rankBoth(asking) {
  const ranks = await call("/api/ranks", { ...asking.asked, ...chosen() }).catch(() => null);
  if (now !== asking || !ranks) return;
  const one = (rank) => (rank ? ordinal(rank) : "not among the first 100");
  $("why-ranks").textContent = `By words only: ${one(ranks.words)}. By vectors only: ${one(ranks.vectors)}.`;
}

async function compare(asking) {
  if ($("matrix").childElementCount) return;
  $("sum").textContent = "Comparing ...";
  let found;
  try {
    found = await call("/api/explain", asking.asked);
  } catch (error) {
    if (now === asking) $("sum").textContent = error.message;
    return;
  }
  if (now !== asking) return;
  drawMatrix(found);
  const terms = found.similarities.map((row, i) => row[found.columns.indexOf(found.winners[i])].toFixed(3));
  const left = terms.length > MOST ? `the nearest of each of ${terms.length} readouts` : terms.join(" + ");
  $("sum").textContent = `${left} = score ${found.score.toFixed(2)} by vectors`;
}

function drawMatrix({ similarities, winners, columns: all }) {
  const columns = all.length > MOST ? [...new Set(winners)].sort((a, b) => a - b) : all;
  const place = new Map(all.map((number, i) => [number, i]));
  const flat = similarities.flat();
  const [least, most] = [Math.min(...flat), Math.max(...flat)];
  const head = make("tr", {}, make("td"), ...columns.map((n) => make("th", { scope: "col", textContent: `P${n}` })));
  const rows = similarities.map((row, i) => make("tr", {},
    make("th", { scope: "row", textContent: `Q${i + 1}` }),
    ...columns.map((n) => {
      const value = row[place.get(n)];
      return cell(value, (value - least) / (most - least || 1), n === winners[i]);
    })));
  const caption = make("caption", { textContent: "Q: readouts of the query, P: readouts of this page, ★ the nearest" });
  $("matrix").replaceChildren(caption, make("thead", {}, head), make("tbody", {}, ...rows));
}

function cell(value, near, winner) {
  const made = make("td", { className: winner ? "winner" : "" }, value.toFixed(3));
  if (winner) made.append(make("span", { className: "unseen", textContent: ", nearest" }));
  made.style.setProperty("--near", (near * 0.45).toFixed(3));
  return made;
}

// -- similar pages

export function showSimilar(document, page) {
  const key = `${document.id}:${page}`;
  if (like === key) return;
  like = key;
  $("similar-hits").replaceChildren();
  $("similar-text").textContent = "";
  if ($("similar").open) loadSimilar();
}

async function loadSimilar() {
  const key = like;
  if (!key || $("similar-hits").childElementCount) return;
  $("similar-text").textContent = "Looking ...";
  const [id, page] = key.split(":");
  let text = "";
  let hits = [];
  try {
    ({ hits } = await call(`/api/documents/${id}/pages/${page}/similar`));
    if (!hits.length) text = "No other document has a similar page.";
  } catch (error) {
    text = error.message;
  }
  if (like !== key) return;
  $("similar-text").textContent = text;
  $("similar-hits").replaceChildren(...hits.map((hit) => cover(hit.document, hit.page)));
}

$("vectors").addEventListener("toggle", () => { if ($("vectors").open) showDetails(); });
$("similar").addEventListener("toggle", () => { if ($("similar").open) loadSimilar(); });

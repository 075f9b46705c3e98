// Why this page: in words first, then, where there are vectors, the matrix of readouts.

import { call } from "./api.js";
import { $, make, ordinal } from "./dom.js";
import { chosen } from "./filters.js";

const MOST = 12; // columns of the matrix; of more readouts only the winners are shown
const SCORES = { words: "Score by words (BM25)", vectors: "Score by vectors (MaxSim)", both: "Score of both ranks together" };

let now = null; // what is explained: the request, the hit if it is one, its place among the hits

export function explain(asked, words, hit, rank, hasVectors) {
  now = asked;
  $("why").hidden = false;
  const place = rank ? `It ranks ${ordinal(rank)} of the pages that were found.` : "It is not among the pages that were found so far.";
  $("why-text").textContent = [told(words.words), place].filter(Boolean).join(" ");
  $("why-words").replaceChildren(...words.words.map(chip));
  $("why-score").textContent = hit ? `${SCORES[hit.by]}: ${hit.score.toFixed(2)}. It compares pages of this search only.` : "";
  $("vectors").hidden = !hasVectors;
  $("matrix").replaceChildren();
  $("sum").textContent = "";
  if (hit?.by === "both") rankBoth(asked);
  if (hasVectors && $("vectors").open) compare();
}

export function hideWhy() {
  now = null;
  $("why").hidden = true;
}

function told(words) {
  if (!words.length) return "";
  const there = words.filter(({ count }) => count);
  if (!there.length) return "None of the words is on this page as text.";
  if (there.length === words.length) return words.length === 1 ? "The word is on this page." : "All of the words are on this page.";
  return `${there.length} of ${words.length} words are on this page.`;
}

function chip({ word, count }) {
  const often = count ? (count === 1 ? "once" : count === 2 ? "twice" : `${count} times`) : "not on it";
  return make("li", { className: count ? "" : "none" }, make(count ? "mark" : "span", { textContent: word }), ` ${often}`);
}

async function rankBoth(asked) {
  const ranks = await call("/api/ranks", { ...asked, ...chosen() }).catch(() => null);
  if (now !== asked || !ranks) return;
  const one = (rank) => (rank ? ordinal(rank) : "not among the first 100");
  $("why-text").textContent += ` By words alone: ${one(ranks.words)}. By vectors alone: ${one(ranks.vectors)}.`;
}

// -- the matrix

async function compare() {
  const asked = now;
  if (!asked || $("matrix").childElementCount) return;
  $("sum").textContent = "Comparing ...";
  let found;
  try {
    found = await call("/api/explain", asked);
  } catch (error) {
    if (now === asked) $("sum").textContent = error.message;
    return;
  }
  if (now !== asked) return;
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

$("vectors").addEventListener("toggle", () => { if ($("vectors").open) compare(); });

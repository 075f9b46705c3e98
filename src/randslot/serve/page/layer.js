// The text layer over a page image: to select, copy, and cite.

import { call } from "./api.js";
import { $, label, make } from "./dom.js";

const pen = document.createElement("canvas").getContext("2d");
let asked = 0;

export function clearLayer() {
  asked++;
  $("layer").replaceChildren();
}

// Scale each word to its width and height in the image, whatever its font.
export async function showLayer(document, page) {
  const number = ++asked;
  const { lines } = await call(`/api/documents/${document.id}/pages/${page}/words`);
  const picture = $("large");
  if (!picture.naturalWidth) await picture.decode().catch(() => {});
  if (number !== asked || !picture.naturalWidth) return;
  pen.font = "100px sans-serif";
  const shape = picture.naturalWidth / picture.naturalHeight;
  const made = lines.flatMap((line) => [...line.map((word) => place(word, shape)), make("br")]);
  $("layer").replaceChildren(...made);
}

function place({ text, left, top, right, bottom }, shape) {
  const height = bottom - top; // as a share of the page height, like font sizes
  const stretch = ((right - left) * shape) / ((pen.measureText(text).width / 100) * height || 1);
  const made = make("span", { textContent: `${text} ` });
  Object.assign(made.style, { left: `${100 * left}%`, top: `${100 * top}%`, fontSize: `${100 * height}cqh`, transform: `scaleX(${stretch.toFixed(4)})` });
  return made;
}

export const selected = () => String(getSelection()).replace(/[ \t]+\n/g, "\n").replace(/ {2,}/g, " ").trim();

$("layer").addEventListener("copy", (event) => { // without the spaces that separate the words
  event.preventDefault();
  event.clipboardData.setData("text/plain", selected());
});

// -- citations

export async function cite(document, page) {
  const text = selected();
  const source = `${label(document)}, page ${page}`;
  const cited = text ? `“${text}” (${source})` : source;
  try {
    await navigator.clipboard.writeText(cited);
  } catch { // the clipboard API needs HTTPS or localhost
    const field = make("textarea", { value: cited, className: "unseen" });
    $("viewer").append(field);
    field.select();
    window.document.execCommand("copy");
    field.remove();
  }
  return text ? `Copied with its source: ${source}` : `Copied: ${source}`;
}

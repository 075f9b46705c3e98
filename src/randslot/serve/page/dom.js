// Elements and words. Names and texts are inserted as text, never as HTML.

const SHORT = 16; // maximum length of a name that always fits
const TAIL = 10; // characters at the end of a longer name that are never cut

export const $ = (id) => document.getElementById(id);

export function make(tag, options = {}, ...children) {
  const element = Object.assign(document.createElement(tag), options);
  element.append(...children);
  return element;
}

export const plural = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;

// A note or an error of the service as a sentence.
export const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;

export function ordinal(number) {
  const tens = number % 100;
  const ending = tens > 10 && tens < 14 ? "th" : { 1: "st", 2: "nd", 3: "rd" }[number % 10] ?? "th";
  return `${number}${ending}`;
}

export function size(bytes) {
  const units = ["bytes", "KB", "MB", "GB", "TB"];
  const step = bytes < 1000 ? 0 : Math.min(Math.floor(Math.log10(bytes) / 3), units.length - 1);
  const value = bytes / 1000 ** step;
  return `${step && value < 10 ? value.toFixed(1) : Math.round(value)} ${units[step]}`;
}

export const day = (time) => new Date(time).toLocaleDateString(undefined, { year: "numeric", month: "short", day: "numeric" });

// A name that is truncated in the middle if it does not fit: its end tells versions and kinds apart. Screen readers get
// the full name.
export function name(text) {
  const characters = [...text];
  let end = characters.length > SHORT ? characters.length - TAIL : characters.length;
  while (end < characters.length && characters[end] === " ") end++; // put the ellipsis before a letter
  return make("span", { className: "name", title: text },
    make("span", { className: "unseen", textContent: text }),
    make("span", { ariaHidden: "true", textContent: characters.slice(0, end).join("") }),
    make("span", { ariaHidden: "true", textContent: characters.slice(end).join("") }));
}

// The shortest folder path that distinguishes documents of the same name; empty for unique names.
export const place = (document) => document.place ? [make("span", { className: "place", textContent: ` in ${document.place}` })] : [];

// The label of a document.
export const label = (document) => document.name + (document.place ? ` in ${document.place}` : "");

// A text with marked ranges; offsets count code points, as in Python.
export function marked(text, marks) {
  const characters = [...text];
  const part = (begin, end) => characters.slice(begin, end).join("");
  const pieces = [];
  let place = 0;
  for (const [begin, end] of marks) {
    pieces.push(part(place, begin), make("mark", { textContent: part(begin, end) }));
    place = end;
  }
  return [...pieces, part(place)];
}

// Merge the marks of adjacent words.
export function join(boxes) {
  const joined = [];
  for (const [left, top, right, bottom] of boxes) {
    const last = joined.at(-1);
    const height = bottom - top;
    if (last && Math.abs(last[1] - top) < height / 2 && left - last[2] > -0.002 && left - last[2] < 0.015) {
      joined[joined.length - 1] = [last[0], Math.min(last[1], top), right, Math.max(last[3], bottom)];
    } else joined.push([left, top, right, bottom]);
  }
  return joined;
}

export function box([left, top, right, bottom]) {
  const made = make("span", { className: "box" });
  const percent = (value) => `${(100 * value).toFixed(3)}%`;
  Object.assign(made.style, { left: percent(left), top: percent(top), width: percent(right - left), height: percent(bottom - top) });
  return made;
}

// Debounce a function by some milliseconds.
export function rested(milliseconds, act) {
  let timer = 0;
  const later = (...given) => { clearTimeout(timer); timer = setTimeout(() => act(...given), milliseconds); };
  later.cancel = () => clearTimeout(timer);
  return later;
}

// Local storage: nothing in it is sent anywhere.
export function kept(key, usual) {
  try { return JSON.parse(localStorage.getItem(`randslot.${key}`)) ?? usual; } catch { return usual; }
}

export function keep(key, value) {
  try { localStorage.setItem(`randslot.${key}`, JSON.stringify(value)); } catch { /* private mode, or full */ }
}

export const image = (document, page, size) => `/api/documents/${document.id}/pages/${page}/image?size=${size}`;

// The URL of a crop of a page: left, top, right and bottom as fractions, for a width on the screen.
export function part(document, page, [left, top, right, bottom], width) {
  const asked = { left: left.toFixed(3), top: top.toFixed(3), right: right.toFixed(3), bottom: bottom.toFixed(3), width: Math.round(width * Math.min(devicePixelRatio, 2)) };
  return `/api/documents/${document.id}/pages/${page}/crop?${new URLSearchParams(asked)}`;
}

// Call a function while an element is near the viewport, and when its button is pressed.
export function whenNear(element, load) {
  const observer = new IntersectionObserver(async (seen) => {
    if (!seen[0].isIntersecting) return;
    await load();
    observer.unobserve(element);
    observer.observe(element);
  }, { rootMargin: "600px" });
  observer.observe(element);
  element.querySelector("button").addEventListener("click", load);
}

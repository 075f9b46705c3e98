// The URL: ?q=query&in=name&folder=...&year=...&type=...&language=...&when=...&m.KEY=VALUE&by=...&sort=date
// &verbatim=1&open=document:page, or ?view=documents. Invalid parameters are removed and reported.

const MEANT = {
  by: /^(words|vectors|both)$/, when: /^(7|30|365)d$/, year: /^\d{4}$/, verbatim: /^1$/, view: /^documents$/,
  sort: /^(date|name|folder|pages|size|modified)$/, order: /^(up|down)$/, open: /^[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}(:\d+)?$/i,
};

const listeners = [];

export const at = () => new URLSearchParams(location.search);
export const onMove = (listener) => listeners.push(listener);
export const moved = () => Promise.all(listeners.map((listener) => listener()));

// Remove invalid parameters from the URL, and return them.
export function dropBad() {
  const bad = [...at()].filter(([name, value]) => MEANT[name] && !MEANT[name].test(value));
  if (bad.length) history.replaceState(null, "", href(Object.fromEntries(bad.map(([name]) => [name, ""]))));
  return bad.map(([name, value]) => `${name}=${value.slice(0, 60)}`);
}

export function href(changes) {
  const next = at();
  for (const [name, value] of Object.entries(changes)) value ? next.set(name, value) : next.delete(name);
  return next.size ? `?${next}` : "/";
}

export function go(changes, replace = false) {
  const address = typeof changes === "string" ? changes : href(changes);
  replace ? history.replaceState(null, "", address) : history.pushState(null, "", address);
  return moved();
}

// Handle links within the page, unless they open in a new tab or window.
export function lead(link, changes) {
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    go(changes);
  });
  return link;
}

window.addEventListener("popstate", moved);

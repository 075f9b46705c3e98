// What the address says: ?q=query&in=name&folder=...&when=...&by=...&m.KEY=VALUE&open=document:page, or ?view=documents.

const listeners = [];

export const at = () => new URLSearchParams(location.search);
export const onMove = (listener) => listeners.push(listener);
export const moved = () => Promise.all(listeners.map((listener) => listener()));

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

// A link that moves within the page, unless it is to open elsewhere.
export function lead(link, changes) {
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    go(changes);
  });
  return link;
}

window.addEventListener("popstate", moved);

// The page: search, look at pages, see why, add documents. Names and texts go in as text, never as HTML.

const $ = (id) => document.getElementById(id);
const FIRST = 24; // documents that are shown before a search
const NAMES = 30; // suggestions for the filter
const MOST = 12; // columns of the matrix; of more readouts only the winners are shown

function make(tag, options = {}, ...children) {
  const element = Object.assign(document.createElement(tag), options);
  element.append(...children);
  return element;
}

async function call(path, body) {
  const options = body === undefined ? {} : {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  };
  const answer = await fetch(path, options).catch(() => { throw new Error("the service does not answer"); });
  if (answer.status === 401 && path !== "/api/session") {
    await askForToken();
    return call(path, body);
  }
  const content = answer.status === 204 ? null : await answer.json();
  if (!answer.ok) throw new Error(content.error);
  return content;
}

function say(text, bad = false) {
  $("message").textContent = text;
  $("message").classList.toggle("bad", bad);
}

const image = (document, page, size) => `/api/documents/${document.id}/pages/${page}/image?size=${size}`;
const plural = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;

// -- what the address says: ?q=query&in=source&open=document:page

let shown = new URLSearchParams();

function go(changes, replace = false) {
  const next = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) value ? next.set(name, value) : next.delete(name);
  const address = next.size ? `?${next}` : "/";
  replace ? history.replaceState(null, "", address) : history.pushState(null, "", address);
  return show();
}

async function show() {
  const before = shown;
  shown = new URLSearchParams(location.search);
  const changed = (name) => shown.get(name) !== before.get(name);
  try {
    if (changed("q") || changed("in") || !before.has("ready")) {
      [$("query").value, $("source").value] = [shown.get("q") ?? "", shown.get("in") ?? ""];
      await search();
    }
    shown.set("ready", "");
    await open();
  } catch (error) {
    say(error.message, true);
  }
}

// -- search

let asked = 0; // answers to older searches are dropped

async function search() {
  const [query, source] = [shown.get("q") ?? "", shown.get("in") ?? ""];
  const number = ++asked;
  document.title = query ? `${query} - RandSlot` : "RandSlot";
  if (query) say("Searching ...");
  const cards = query ? await find(query, source) : await list();
  if (number !== asked) return;
  $("hits").replaceChildren(...cards);
}

async function find(query, source) {
  $("title").textContent = "Pages, best first";
  const { hits } = await call("/api/search", { query, k: 20, source: source || null });
  say(hits.length ? `${plural(hits.length, "page")} for "${query}"` : `No page found${source ? ` in ${source}` : ""}.`);
  return hits.map((hit) => card(hit.document, hit.page, hit.score));
}

async function list() {
  $("title").textContent = "In this library";
  const { total, documents } = await call(`/api/documents?limit=${FIRST}`);
  say(total ? "" : "The library is empty. Add documents below, or with randslot index.");
  if (total > documents.length) $("title").textContent += ` (${documents.length} of ${plural(total, "document")})`;
  return documents.map((document) => card(document, 1));
}

function card(document, page, score) {
  const label = `${document.name}, page ${page}`;
  const caption = make("span", { className: "caption" }, make("span", { className: "name", textContent: document.name }));
  const where = score === undefined ? plural(document.pages, "page") : `page ${page} of ${document.pages}`;
  caption.append(make("span", { className: "where", textContent: `${where} · ${document.folder}/` }));
  if (score !== undefined) {
    const words = make("span", { className: "unseen", textContent: "score " });
    caption.append(make("span", { className: "score", title: "score" }, words, score.toFixed(2)));
  }
  const next = new URLSearchParams(shown);
  next.delete("ready");
  next.set("open", `${document.id}:${page}`);
  const link = make("a", { href: `?${next}` }, make("img", { src: image(document, page, "small"), alt: label, loading: "lazy" }), caption);
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    go({ open: `${document.id}:${page}` });
  });
  return make("li", {}, link);
}

// -- one page, large

let opened = null; // document and page in the viewer

async function open() {
  const [id, page] = (shown.get("open") ?? "").split(":");
  if (!id) {
    opened = null;
    if ($("viewer").open) $("viewer").close();
    return;
  }
  const document = opened?.document.id === id ? opened.document : await call(`/api/documents/${encodeURIComponent(id)}`);
  opened = { document, page: Math.min(Math.max(Number(page) || 1, 1), document.pages) };
  showPage();
  if (!$("viewer").open) $("viewer").showModal();
  await explain();
}

function showPage() {
  const { document, page } = opened;
  $("viewer-title").textContent = `${document.name}, page ${page} of ${document.pages}`;
  $("large").src = image(document, page, "large");
  $("large").alt = `${document.name}, page ${page}`;
  $("file").href = document.file + (/\.pdf$/i.test(document.name) ? `#page=${page}` : "");
  for (const [button, number] of [[$("before"), page - 1], [$("after"), page + 1]]) {
    button.disabled = number < 1 || number > document.pages;
    const thumbnail = button.querySelector("img");
    button.disabled ? thumbnail.removeAttribute("src") : (thumbnail.src = image(document, number, "small"));
  }
}

function turn(step) {
  const page = opened.page + step;
  if (page >= 1 && page <= opened.document.pages) go({ open: `${opened.document.id}:${page}` }, true);
}

// -- why this page

async function explain() {
  const query = shown.get("q");
  $("why").hidden = !query;
  if (!query) return;
  const { document, page } = opened;
  $("matrix").replaceChildren();
  $("sum").textContent = "";
  $("why-text").textContent = "Comparing ...";
  let found;
  try {
    found = await call("/api/explain", { query, document: document.id, page });
  } catch (error) {
    $("why-text").textContent = error.message;
    return;
  }
  if (opened?.document.id !== document.id || opened.page !== page) return;
  $("why-text").textContent = "The model reads the query and the page into a few vectors each, the readouts. Each " +
    "readout of the query takes the nearest one of the page; those similarities add up to the score.";
  drawMatrix(found);
  const terms = found.similarities.map((row, i) => row[found.winners[i] - 1].toFixed(3));
  $("sum").textContent = `${terms.join(" + ")} = score ${found.score.toFixed(2)}`;
}

function drawMatrix({ similarities, winners }) {
  let columns = similarities[0].map((_, i) => i + 1);
  if (columns.length > MOST) columns = [...new Set(winners)].sort((a, b) => a - b);
  const flat = similarities.flat();
  const [least, most] = [Math.min(...flat), Math.max(...flat)];
  const head = make("tr", {}, make("td"), ...columns.map((n) => make("th", { scope: "col", textContent: `P${n}` })));
  const rows = similarities.map((row, i) => make("tr", {},
    make("th", { scope: "row", textContent: `Q${i + 1}` }),
    ...columns.map((n) => cell(row[n - 1], (row[n - 1] - least) / (most - least || 1), n === winners[i]))));
  const caption = make("caption", { textContent: "Q: readouts of the query, P: readouts of this page, ★ the nearest" });
  $("matrix").replaceChildren(caption, make("thead", {}, head), make("tbody", {}, ...rows));
}

function cell(value, near, winner) {
  const made = make("td", { className: winner ? "winner" : "" }, value.toFixed(3));
  if (winner) made.append(make("span", { className: "unseen", textContent: ", nearest" }));
  made.style.setProperty("--near", (near * 0.45).toFixed(3));
  return made;
}

// -- adding documents

const rows = new Map(); // upload id -> its row
let polling = false;

function addFiles(files) {
  for (const file of files) send(file, uploadRow(file.name));
}

function uploadRow(name) {
  const bar = make("progress", { max: 1, value: 0, ariaLabel: `Progress of ${name}` });
  const text = make("span", { textContent: "sending" });
  $("uploads").prepend(make("li", {}, make("span", { className: "name", textContent: name }), text, bar));
  return { bar, text };
}

function send(file, row) {
  const request = new XMLHttpRequest(); // fetch does not tell how much has been sent
  request.open("POST", `/api/uploads?name=${encodeURIComponent(file.name)}`);
  request.setRequestHeader("Content-Type", "application/octet-stream");
  request.upload.onprogress = (event) => { row.bar.value = event.loaded / event.total; };
  request.onerror = () => failed(row, "the upload was cut off");
  request.onload = () => {
    let answer = {};
    try { answer = JSON.parse(request.responseText); } catch { /* not from the service */ }
    if (request.status !== 202) return failed(row, answer.error ?? `refused (${request.status})`);
    rows.set(answer.id, row);
    row.text.textContent = "waiting";
    row.bar.removeAttribute("value");
    poll();
  };
  request.send(file);
}

function failed(row, reason) {
  row.bar.hidden = true;
  row.text.textContent = `Could not be added: ${reason}`;
  row.text.className = "bad";
}

async function poll() {
  if (polling) return;
  polling = true;
  while (rows.size) {
    await new Promise((done) => setTimeout(done, 500));
    try {
      for (const upload of (await call("/api/uploads")).uploads) showUpload(upload);
    } catch { /* tried again */ }
  }
  polling = false;
  await Promise.all([about(), suggest()]);
  if (!shown.get("q")) await search();
}

function showUpload(upload) {
  const row = rows.get(upload.id);
  if (!row) return;
  if (upload.state === "failed") failed(row, upload.error);
  if (upload.state === "reading" && upload.num_pages) {
    row.bar.value = upload.pages_done / upload.num_pages;
    row.text.textContent = `reading, ${upload.pages_done} of ${plural(upload.num_pages, "page")}`;
  }
  if (upload.state === "done") {
    row.bar.value = 1;
    row.text.textContent = `Added, ${plural(upload.num_pages, "page")}`;
  }
  if (["failed", "done"].includes(upload.state)) rows.delete(upload.id);
}

// -- about the library, and the token

async function about() {
  const status = await call("/api/status");
  const vectors = status.page_vectors === null ? "several vectors" : plural(status.page_vectors, "vector");
  $("about").textContent = [status.library, plural(status.pages, "page"), plural(status.documents, "document"),
    `${vectors} a page`].join(" · ");
  $("adding").hidden = $("add").hidden = status.read_only;
}

async function suggest() {
  const { documents } = await call(`/api/documents?limit=${NAMES}&name=${encodeURIComponent($("source").value)}`);
  $("names").replaceChildren(...documents.map(({ name, folder }) => make("option", { value: name, label: `${name} (${folder})` })));
}

let login = null; // one question, however many answers wait for it

function askForToken() {
  login ??= new Promise((done) => {
    $("login").showModal();
    $("token-form").onsubmit = async (event) => {
      event.preventDefault();
      try {
        await call("/api/session", { token: $("token").value });
      } catch (error) {
        $("token-error").textContent = error.message;
        return;
      }
      $("login").close();
      login = null;
      done();
    };
  });
  return login;
}

// -- what people do

$("search").addEventListener("submit", (event) => {
  event.preventDefault();
  if ($("query").value.trim()) go({ q: $("query").value.trim(), in: $("source").value.trim(), open: "" });
});
$("query").addEventListener("search", () => { if (!$("query").value) go({ q: "", open: "" }); });
let typing = 0;
$("source").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => suggest().catch(() => {}), 200);
});
$("login").addEventListener("cancel", (event) => event.preventDefault());
$("viewer").addEventListener("close", () => { if (shown.get("open")) go({ open: "" }, true); });
$("viewer").addEventListener("click", (event) => { if (event.target === $("viewer")) $("viewer").close(); });
$("viewer").addEventListener("keydown", (event) => {
  if (event.key === "ArrowLeft") turn(-1);
  if (event.key === "ArrowRight") turn(1);
});
$("close").addEventListener("click", () => $("viewer").close());
$("before").addEventListener("click", () => turn(-1));
$("after").addEventListener("click", () => turn(1));
$("files").addEventListener("change", () => { addFiles($("files").files); $("files").value = ""; });
for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
  window.addEventListener(kind, (event) => { // anywhere: a file that misses the area must not replace the page
    event.preventDefault();
    $("drop").classList.toggle("over", kind === "dragenter" || kind === "dragover");
    if (kind === "drop" && !$("adding").hidden) addFiles(event.dataTransfer.files);
  });
}
window.addEventListener("popstate", show);
Promise.all([about(), suggest(), show()]).catch((error) => say(error.message, true));

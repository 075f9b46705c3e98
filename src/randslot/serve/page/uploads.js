// Uploads: chosen or dropped files, and their progress, visible in every view.

import { call } from "./api.js";
import { $, make, name, plural } from "./dom.js";

const WAIT = 2000; // milliseconds before retrying a file that the server was too busy for

const rows = new Map(); // upload id -> its row
const all = new Set(); // visible rows: {file, state, ...}
let polling = false;
let enabled = false;
let whenDone = () => {};

export function know(status, done) {
  enabled = !status.read_only;
  whenDone = done;
  $("adding").hidden = $("add").hidden = status.read_only;
}

export function addFiles(files) {
  for (const file of files) send(uploadRow(file));
}

function uploadRow(file) {
  const row = {
    file, state: "sending", request: null, id: null,
    bar: make("progress", { max: 1, value: 0, ariaLabel: `Progress of ${file.name}` }), text: make("span", { className: "state" }),
    cancel: make("button", { type: "button", textContent: "Cancel", ariaLabel: `Cancel ${file.name}` }),
    retry: make("button", { type: "button", textContent: "Retry", ariaLabel: `Retry ${file.name}`, hidden: true }),
  };
  row.cancel.addEventListener("click", () => cancel(row));
  row.retry.addEventListener("click", () => send(row));
  $("uploads").prepend(make("li", {}, row.cancel, row.retry, name(file.name), row.text, row.bar));
  $("tray").hidden = false;
  all.add(row);
  return row;
}

function set(row, state, text, kind = "") {
  row.state = state;
  row.text.textContent = row.text.title = text;
  row.text.className = `state ${kind}`;
  const isOver = ["failed", "done", "cancelled"].includes(state);
  row.bar.hidden = row.cancel.hidden = isOver;
  row.retry.hidden = !["failed", "cancelled"].includes(state);
  if (isOver) rows.delete(row.id);
  count();
}

// The title of the tray: the numbers of finished and failed uploads.
function count() {
  const number = (state) => [...all].filter((row) => row.state === state).length;
  const [done, failed] = [number("done"), number("failed")];
  $("tray-title").textContent = `Uploads: ${done} of ${all.size} added${failed ? `, ${failed} failed` : ""}`;
  $("retry-all").hidden = failed < 2;
}

function send(row) {
  const request = new XMLHttpRequest(); // fetch does not report upload progress
  row.request = request;
  row.bar.value = 0;
  set(row, "sending", "sending");
  request.open("POST", `/api/uploads?name=${encodeURIComponent(row.file.name)}`);
  request.setRequestHeader("Content-Type", "application/octet-stream");
  request.upload.onprogress = (event) => { row.bar.value = event.loaded / event.total; };
  request.onerror = () => fail(row, "the upload was interrupted");
  request.onload = () => {
    let answer = {};
    try { answer = JSON.parse(request.responseText); } catch { /* not from our server */ }
    if (request.status === 429) { // too many at once: retry when some are done
      set(row, "sending", "waiting to be sent");
      row.timer = setTimeout(() => send(row), WAIT);
      return;
    }
    if (request.status !== 202) return fail(row, answer.error ?? `refused (${request.status})`);
    row.id = answer.id;
    rows.set(answer.id, row);
    set(row, "waiting", "waiting");
    row.bar.removeAttribute("value");
    poll();
  };
  request.send(row.file);
}

function cancel(row) {
  clearTimeout(row.timer);
  if (rows.has(row.id)) return call(`/api/uploads/${row.id}`, undefined, "DELETE").catch(() => {}); // it may have finished
  row.request.onload = row.request.onerror = null;
  row.request.abort();
  set(row, "cancelled", "Cancelled");
}

const fail = (row, reason) => set(row, "failed", `Not added: ${reason}`, "bad");

async function poll() {
  if (polling) return;
  polling = true;
  while (rows.size) {
    await new Promise((done) => setTimeout(done, 500));
    try {
      for (const upload of (await call("/api/uploads")).uploads) showUpload(upload);
    } catch { /* retried */ }
  }
  polling = false;
  await whenDone();
}

function showUpload(upload) {
  const row = rows.get(upload.id);
  if (!row) return;
  if (upload.state === "failed") fail(row, upload.error);
  if (upload.state === "cancelled") set(row, "cancelled", "Cancelled");
  if (upload.state === "reading" && upload.num_pages) {
    row.bar.value = upload.pages_done / upload.num_pages;
    row.text.textContent = `reading, ${upload.pages_done} of ${plural(upload.num_pages, "page")}`;
  }
  if (upload.state === "done") {
    set(row, "done", upload.same_as === null ? `Added, ${plural(upload.num_pages, "page")}`
      : upload.same_as === upload.name ? "Already in the library" : `Already in the library as ${upload.same_as}`, "good");
  }
}

// -- events

$("add").addEventListener("click", () => $("files").click());
$("tray-close").addEventListener("click", () => { $("tray").hidden = true; });
$("retry-all").addEventListener("click", () => { for (const row of all) if (row.state === "failed") send(row); });
$("files").addEventListener("change", () => { addFiles($("files").files); $("files").value = ""; });
for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
  window.addEventListener(kind, (event) => { // anywhere: the browser must not open a file dropped outside the area
    event.preventDefault();
    const isFile = event.dataTransfer?.types.includes("Files");
    $("over").hidden = !(enabled && isFile && (kind === "dragenter" || kind === "dragover"));
    if (kind === "drop" && enabled) addFiles(event.dataTransfer.files);
  });
}

// Adding documents: files that are chosen or dropped, and how far each is, wherever one looks meanwhile.

import { call } from "./api.js";
import { $, make, name, plural } from "./dom.js";

const rows = new Map(); // upload id -> its row
let polling = false;
let enabled = false;
let whenDone = () => {};

export function know(status, done) {
  enabled = !status.read_only;
  whenDone = done;
  $("adding").hidden = $("add").hidden = status.read_only;
}

export function addFiles(files) {
  for (const file of files) send(file, uploadRow(file.name));
}

function uploadRow(file) {
  const bar = make("progress", { max: 1, value: 0, ariaLabel: `Progress of ${file}` });
  const text = make("span", { className: "state", textContent: "sending" });
  const cancel = make("button", { type: "button", textContent: "Cancel", ariaLabel: `Cancel ${file}`, hidden: true });
  $("uploads").prepend(make("li", {}, name(file), text, bar, cancel));
  $("tray").hidden = false;
  return { bar, text, cancel };
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
    if (request.status === 429) { // many at once: the next when some are done
      row.text.textContent = "waiting to be sent";
      return setTimeout(() => send(file, row), 2000);
    }
    if (request.status !== 202) return failed(row, answer.error ?? `refused (${request.status})`);
    rows.set(answer.id, row);
    row.cancel.hidden = false;
    row.cancel.onclick = () => call(`/api/uploads/${answer.id}`, undefined, "DELETE").catch(() => {}); // it may be over
    row.text.textContent = "waiting";
    row.bar.removeAttribute("value");
    poll();
  };
  request.send(file);
}

function failed(row, reason) {
  row.bar.hidden = true;
  row.text.textContent = `Could not be added: ${reason}`;
  row.text.classList.add("bad");
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
  await whenDone();
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
    row.bar.hidden = true;
    row.text.classList.add("good");
    row.text.textContent = upload.same_as === null ? `Added, ${plural(upload.num_pages, "page")}`
      : upload.same_as === upload.name ? "Already in the library" : `Already in the library as ${upload.same_as}`;
  }
  if (upload.state === "cancelled") {
    row.bar.hidden = true;
    row.text.textContent = "Cancelled";
  }
  if (["failed", "done", "cancelled"].includes(upload.state)) {
    row.cancel.hidden = true;
    rows.delete(upload.id);
  }
}

// -- what people do

$("add").addEventListener("click", () => $("files").click());
$("tray-close").addEventListener("click", () => { $("tray").hidden = true; });
$("files").addEventListener("change", () => { addFiles($("files").files); $("files").value = ""; });
for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
  window.addEventListener(kind, (event) => { // anywhere: a file that misses the area must not replace the page
    event.preventDefault();
    const isFile = event.dataTransfer?.types.includes("Files");
    $("over").hidden = !(enabled && isFile && (kind === "dragenter" || kind === "dragover"));
    if (kind === "drop" && enabled) addFiles(event.dataTransfer.files);
  });
}

// Requests to the service, and its access token.

import { $ } from "./dom.js";

export async function call(path, body, method) {
  const options = { method: method ?? (body === undefined ? "GET" : "POST") };
  if (body !== undefined) Object.assign(options, { headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  const answer = await fetch(path, options).catch(() => { throw new Error("the server is not responding"); });
  if (answer.status === 401 && path !== "/api/session") {
    await askForToken();
    return call(path, body, method);
  }
  const content = answer.status === 204 ? null : await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(content.error ?? `server error ${answer.status}`);
  return content;
}

let login = null; // one login for all pending requests

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

$("login").addEventListener("cancel", (event) => event.preventDefault());

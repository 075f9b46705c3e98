// Show openapi.json: each endpoint with its parameters, body, response, and an example command.

import { make } from "./dom.js";

const schema = await (await fetch("/openapi.json")).json();
const follow = (part) => (part?.$ref ? schema.components.schemas[part.$ref.split("/").pop()] : part);

function kind(part) {
  if (part?.$ref) return part.$ref.split("/").pop();
  if (part?.anyOf) return part.anyOf.map(kind).join(" or ");
  if (part?.enum) return part.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (part?.const) return JSON.stringify(part.const);
  if (part?.type === "array") return `list of ${kind(part.items)}`;
  return part?.format ?? part?.type ?? "anything";
}

function limits(part) {
  const words = { minLength: "at least", maxLength: "at most", minimum: "from", maximum: "to", default: "default" };
  return Object.entries(words).filter(([name]) => part[name] !== undefined)
    .map(([name, word]) => `${word} ${JSON.stringify(part[name])}${name.endsWith("Length") ? " characters" : ""}`).join(", ");
}

function table(title, rows) {
  const lines = rows.map(([name, part, about]) => make("tr", {},
    make("th", { scope: "row" }, make("code", { textContent: name })),
    make("td", { textContent: kind(part) }),
    make("td", { textContent: [about, limits(part)].filter(Boolean).join("; ") })));
  return make("div", { className: "scroll" }, make("table", {}, make("caption", { textContent: title }), make("tbody", {}, ...lines)));
}

function fields(title, part) {
  const found = follow(part);
  if (!found?.properties) return make("p", { textContent: `${title}: ${kind(part)}` });
  const needed = new Set(found.required ?? []);
  return table(title, Object.entries(found.properties).map(([name, value]) =>
    [name, value, [value.description, title === "Body" && needed.has(name) ? "required" : ""].filter(Boolean).join("; ")]));
}

function example(part) {
  const found = follow(part) ?? {};
  const wanted = (found.required ?? []).map((name) => [name, found.properties[name]]);
  return Object.fromEntries(wanted.map(([name, value]) => [name, value.examples?.[0] ?? (value.type === "integer" ? 1 : name.toUpperCase())]));
}

function command(method, path, does) {
  const query = (does.parameters ?? []).filter((one) => one.in === "query" && one.required).map((one) => `${one.name}=report.pdf`);
  const address = `'${location.origin}${path}${query.length ? `?${query.join("&")}` : ""}'`;
  const token = does.security ? ` -H 'Authorization: Bearer TOKEN'` : "";
  const content = does.requestBody?.content ?? {};
  if (content["application/json"]) {
    return `curl${token} ${address} -H 'Content-Type: application/json' -d '${JSON.stringify(example(content["application/json"].schema))}'`;
  }
  if (method === "delete") return `curl${token} -X DELETE ${address}`;
  if (method === "post") return `curl${token} ${address} -H 'Content-Type: application/octet-stream' --data-binary @report.pdf`;
  return `curl${token} ${address}`;
}

function endpoint(path, method, does) {
  const made = make("section", {},
    make("h2", {}, make("code", { textContent: `${method.toUpperCase()} ${path}` })),
    make("p", { textContent: does.description ?? "" }),
    make("pre", {}, make("code", { textContent: command(method, path, does) })));
  if (does.parameters) made.append(table("Parameters", does.parameters.map((one) => [one.name, one.schema, one.description])));
  const body = does.requestBody?.content;
  if (body) made.append(body["application/json"] ? fields("Body", body["application/json"].schema) : make("p", { textContent: "Body: the bytes of the file" }));
  const [status, answer] = Object.entries(does.responses).find(([code]) => code.startsWith("2"));
  const [type, content] = Object.entries(answer.content ?? {})[0] ?? ["nothing", {}];
  made.append(type === "application/json" ? fields(`Response ${status}`, content.schema) : make("p", { textContent: `Response ${status}: ${type}` }));
  return made;
}

document.getElementById("about").textContent = schema.info.description.replaceAll("`", "");
const found = Object.entries(schema.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, does]) => endpoint(path, method, does)));
const used = Object.entries(schema.components.schemas).filter(([name]) => !name.endsWith("Body"));
document.getElementById("endpoints").replaceChildren(...found, make("section", {}, make("h2", { textContent: "Response schemas" }), ...used.map(([name, part]) => fields(name, part))));

// The page /docs: every endpoint of openapi.json with the fields of its request and response. It loads nothing from
// other hosts, in contrast to Swagger UI.
import { create } from "./dom.js";

const schema = await (await fetch("openapi.json")).json();

function resolve(part) {
  return part?.$ref ? schema.components.schemas[part.$ref.split("/").at(-1)] : part;
}

function typeName(field) {
  if (field.$ref) return field.$ref.split("/").at(-1);
  const union = field.anyOf ?? field.oneOf ?? field.allOf;
  if (union) return union.filter((part) => part.type !== "null").map(typeName).join(" or ");
  if (field.enum) return field.enum.map((value) => JSON.stringify(value)).join(", ");
  if (field.type === "array") return `list of ${typeName(field.items ?? {})}`;
  return field.type ?? "any";
}

// The fields of the first content type that has a schema, as a table; null if there is no content.
function fieldTable(title, content) {
  if (!content) return null;
  const outer = resolve(Object.values(content).find((kind) => kind.schema)?.schema);
  const found = resolve(outer?.items) ?? outer;
  const heading = create("h3", {}, `${title}: ${Object.keys(content).join(", ")}`);
  if (!found?.properties) return create("section", {}, heading);
  const rows = Object.entries(found.properties).map(([name, field]) =>
    create(
      "tr",
      {},
      create("td", {}, create("code", {}, name)),
      create("td", {}, typeName(field)),
      create("td", {}, field.description ?? (found.required?.includes(name) ? "required" : "")),
    ),
  );
  return create("section", {}, heading, create("table", { class: "fields" }, create("tbody", {}, ...rows)));
}

function endpoint(path, method, operation) {
  const parts = [
    fieldTable("Request", operation.requestBody?.content),
    fieldTable("Response", operation.responses["200"]?.content),
  ];
  return create(
    "details",
    { class: "card", id: `${method}${path.replaceAll("/", "-")}` },
    create("summary", {}, create("code", {}, `${method.toUpperCase()} ${path}`), ` ${operation.description ?? operation.summary ?? ""}`),
    ...parts.filter((part) => part !== null),
  );
}

document.getElementById("endpoints").replaceChildren(
  ...Object.entries(schema.paths).flatMap(([path, operations]) =>
    Object.entries(operations).map(([method, operation]) => endpoint(path, method, operation)),
  ),
);

// The page of the whole model: its contents and sizes, and all tensors as a treemap.

import { api } from "./api.js";
import { paintLegend, scale } from "./colours.js";
import { bitsPerValue, byId, digits, element, percent, ratio, shaped, size } from "./dom.js";
import { show, state } from "./state.js";
import { treemap } from "./treemap.js";

const HEIGHT = 520;

// The least and the largest value of tensors that are not small: small ones are mostly metadata. The
// range is never so narrow that noise becomes colour.
function range(values, rows) {
  const largest = rows.reduce((most, row) => Math.max(most, row.nbytes), 0);
  const large = values.filter((value, i) => value !== null && rows[i].nbytes * 100 >= largest);
  if (!large.length) return [0, 1];
  const least = large.reduce((a, b) => Math.min(a, b));
  const most = large.reduce((a, b) => Math.max(a, b));
  return most - least > 0.005 * most ? [least, most] : [0.9 * least, 1.1 * most];
}

// The quantities that rectangles can be coloured by.
const COLOURS = {
  bits: {
    label: "stored bits per value", kind: "linear", range,
    value: bitsPerValue, format: (v) => `${digits(v)} bits`,
  },
  ratio: {
    label: "ratio", kind: "linear", range,
    value: ratio, format: (v) => `${digits(v)}×`,
  },
  changed: {
    label: "part of the values that changed", kind: "linear", range: () => [0, 1],
    value: (row, changes) => changes?.changes[row.name]?.changed ?? null, format: percent,
  },
  difference: {
    label: "bits per value of the change", kind: "linear", range,
    value: (row, changes) => changes?.bits[row.name]?.["difference, arithmetic"] ?? null,
    format: (v) => `${digits(v)} bits`,
  },
};

// Draw the page.
//   contents   the document of `bf16codecs info --json`
//   against    the checkpoint to compare with, or ""
export async function overview(contents, against) {
  const main = byId("main");
  const names = Object.keys(COLOURS).filter((name) => {
    if (name === "changed" || name === "difference") return Boolean(against);
    return contents.stored_nbytes !== null;
  });
  const preferred = state.colour || (against ? "changed" : "bits");
  const colour = names.includes(preferred) ? preferred : names[0];
  const choice = element(
    "select", { id: "colour", onchange: (event) => show({ colour: event.target.value }) },
    ...names.map((name) =>
      element("option", { value: name, selected: name === colour }, COLOURS[name].label))
  );
  const legend = element("span", { class: "legend" });
  const map = element("div", { id: "treemap" }, element("p", { class: "soft reading" }, "Reading …"));
  const note = element("p", { class: "soft", id: "note" });
  const wrong = element("p", { class: "wrong", id: "damage" });
  main.replaceChildren(
    element("h1", {}, contents.path),
    facts(contents),
    element("div", { class: "tools" },
      names.length ? element("label", {}, "colour: ", choice) : null, legend),
    map, note, wrong, ...kinds(contents)
  );
  let changes = null;
  if (colour === "changed" || colour === "difference") {
    changes = await api.changes({ step: state.step, against });
    if (changes === null) return;
    const part = changes.share < 1 ? ` Compared: ${percent(changes.share)} of all values.` : "";
    note.textContent = Object.keys(changes.changes).length
      ? `Compared with ${against}.${part}`
      : `${against} has no tensor of the same name, shape and dtype to compare with.`;
    wrong.textContent = (changes.errors ?? []).slice(0, 3).join("\n");
  } else if (contents.stored_nbytes === null && contents.kind !== "safetensors") {
    note.replaceChildren("The server lists no sizes. ",
      element("button", { id: "ask", onclick: () => byId("main").dispatchEvent(new Event("sizes")) },
        "Ask for each chunk's"));
  }
  map.replaceChildren(drawnMap(contents, COLOURS[colour], changes, legend));
}

function drawnMap(contents, quantity, changes, legend) {
  const rows = contents.tensors;
  const value = quantity ? (row) => quantity.value(row, changes) : () => null;
  const [least, most] = quantity ? quantity.range(rows.map(value), rows) : [0, 1];
  const colours = scale(quantity?.kind ?? "linear", least, most);
  if (quantity) {
    const strip = element("canvas");
    paintLegend(strip, colours);
    legend.replaceChildren(quantity.format(least), strip, quantity.format(most));
  }
  const about = (row) => {
    const number = value(row);
    const times = ratio(row);
    return [
      row.name,
      `${row.dtype} ${shaped(row.shape)}, ${size(row.nbytes)}`,
      times ? `stored in ${size(row.stored_nbytes)}: ${digits(times, 4)}×, ${row.codec}` : "",
      quantity && number !== null ? `${quantity.label}: ${quantity.format(number)}` : "",
    ].filter(Boolean).join("\n");
  };
  const width = Math.max(280, byId("main").clientWidth - 40);
  return treemap(rows, width, HEIGHT, { value, scale: colours }, about, (tensor) => show({ tensor }));
}

function facts(contents) {
  const stored = contents.stored_nbytes;
  const entries = [
    ["parameters", contents.parameters.toLocaleString("en")],
    ["tensors", [`${contents.tensors.length}`, listed(contents.dtypes)].filter(Boolean).join(": ")],
    ["size", size(contents.nbytes)],
    ["stored in", stored === null ? "" : `${size(stored)} (${digits(contents.ratio, 4)}×)`],
    ["codecs", contents.kind === "safetensors" ? "" : listed(contents.codecs)],
    ["objects", contents.objects?.length ? `${contents.objects.length}` : ""],
    ["base", contents.base?.path ?? ""],
  ];
  return element("dl", { class: "facts" },
    ...entries.filter(([, text]) => text).map(([name, text]) =>
      element("div", {}, element("dt", {}, `${name}: `), element("dd", {}, text))));
}

function listed(counts) {
  return Object.entries(counts).map(([name, count]) => `${count} ${name}`).join(", ");
}

// A table of the kinds of tensors.
function kinds(contents) {
  const found = new Map();
  for (const row of contents.tensors) {
    const sums = found.get(row.kind) ?? { count: 0, parameters: 0, nbytes: 0, stored: 0 };
    sums.count += 1;
    sums.parameters += row.parameters;
    sums.nbytes += row.nbytes;
    sums.stored += row.stored_nbytes ?? 0;
    found.set(row.kind, sums);
  }
  const isStored = contents.stored_nbytes !== null;
  const heads = ["kind", "tensors", "values", "size", ...(isStored ? ["stored", "ratio", "bits per value"] : [])];
  const rows = [...found].map(([kind, sums]) => [
    kind, sums.count.toLocaleString("en"), sums.parameters.toLocaleString("en"), size(sums.nbytes),
    ...(isStored ? [size(sums.stored), sums.stored ? `${digits(sums.nbytes / sums.stored, 4)}×` : "",
      sums.parameters ? digits((8 * sums.stored) / sums.parameters, 4) : ""] : []),
  ]);
  return [
    element("h2", {}, "Kinds of tensors"),
    element("table", { id: "kinds" },
      element("thead", {}, element("tr", {}, ...heads.map((head, i) =>
        element("th", { scope: "col", class: i ? "number" : null }, head)))),
      element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((cell, i) =>
        element(i ? "td" : "th", { class: i ? "number" : null, scope: i ? null : "row" }, cell)))))),
  ];
}

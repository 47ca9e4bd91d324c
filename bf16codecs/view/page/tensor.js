// The page of one tensor: its picture and its statistics.

import { api } from "./api.js";
import { paused } from "./busy.js";
import { paintLegend, scale } from "./colours.js";
import { bitsPerValue, byId, digits, element, percent, ratio, shaped, size } from "./dom.js";
import { Heat } from "./heat.js";
import { panels } from "./panels.js";
import { parsed, texts, whole } from "./region.js";
import { show, state } from "./state.js";

const LABELS = {
  value: "value (mean of a cell)",
  magnitude: "magnitude (root mean square)",
  largest: "largest absolute value",
  difference: "difference (mean)",
  changed: "part that changed",
};
const KINDS = {
  value: "diverging", difference: "diverging", magnitude: "log", largest: "log", changed: "linear",
};
// A picture is requested once the wheel has stopped, and then a finer one.
const drawnSoon = paused(60, (view, region) => fetched(view, region, ""));
const drawnFiner = paused(250, (view, region) => fetched(view, region, "fine"));
// The most cells along an axis; a wider canvas has wider cells.
const MOST_CELLS = 2048;

// The view that is shown, and the one that was requested last, which replaces it once it is known.
let page = null;
let wanted = null;

// Draw the page of a tensor.
//   row       the tensor in `bf16codecs info --json`, if the checkpoint's contents are known
//   against   the checkpoint to compare with, or ""
//   isRemote  whether the model is read from a server
export async function tensor(row, against, isRemote) {
  const view = { name: state.tensor, row, against };
  wanted = view;
  const main = byId("main");
  if (page?.name !== view.name) {
    const reading = element("p", { class: "soft reading" }, "Reading …");
    main.replaceChildren(element("h1", {}, view.name), reading);
  }
  let about;
  try {
    about = await api.tensor({ step: state.step, tensor: view.name });
  } catch (error) {
    page = null;
    main.replaceChildren(element("h1", {}, view.name));
    throw error;
  }
  if (about === null || wanted !== view) return;
  const before = page;
  page = view;
  view.about = { ...about, is_remote: isRemote };
  if (!about.rows || !about.columns) {
    const nothing = element("p", {}, "It has no values.");
    main.replaceChildren(element("h1", {}, view.name), facts(row, about), nothing);
  } else if (before?.heat && before.about.rows === about.rows && before.about.columns === about.columns) {
    kept(view, before);
  } else built(view);
}

// Show another step of the same tensor: the old picture stays until the new one comes, and its colours.
function kept(view, before) {
  for (const key of ["heat", "readout", "note", "wrong", "legend", "panels", "limits"]) {
    view[key] = before[key];
  }
  const main = byId("main");
  main.querySelector(".facts").replaceWith(facts(view.row, view.about));
  main.querySelector(".tools").replaceWith(tools(view));
  refresh();
}

function built(view) {
  const { about, row } = view;
  const main = byId("main");
  const height = Math.max(110, Math.min(480, (760 * about.rows) / about.columns));
  view.heat = new Heat(about, Math.round(height), (region) => looked(page, region), showCell);
  view.readout = element("p", { class: "readout", id: "readout", role: "status" });
  view.note = element("p", { class: "soft", id: "note" });
  view.wrong = element("p", { class: "wrong", id: "damage", hidden: true });
  view.legend = element("span", { class: "legend" });
  view.panels = element("div", { class: "panels", id: "panels" });
  main.replaceChildren(
    element("h1", {}, view.name), facts(row, about), tools(view), view.heat.node, view.readout,
    view.note, view.wrong, view.panels
  );
  refresh();
}

// Count once the picture is shown: doing both at the same time delays the picture.
function counted(view) {
  if (view.isCounted) return;
  view.isCounted = true;
  panels(view.panels, view.about, view.against);
}

// Go to another part of the tensor, and keep the colours, which a copied address has as well.
function looked(view, region) {
  const limit = view.limits ? `${view.limits.least}:${view.limits.most}` : "";
  const part = texts(region, view.about);
  show({ ...part, limit: part.rows || part.columns ? limit : "" });
}

// Draw the part and the quantity that the address names.
export function refresh() {
  const view = page;
  if (!view?.heat) return;
  const region = parsed(state.rows, state.columns, view.about);
  view.heat.look(region);
  view.show.value = shown(view);
  drawnFiner.cancel();
  if (view.heat.picture) drawnSoon(view, region);
  else fetched(view, region, "");
}

export function isShown(name) {
  return Boolean(name) && page?.name === name;
}

export function leave() {
  drawnSoon.cancel();
  drawnFiner.cancel();
  page = wanted = null;
}

export function zoom(factor) {
  page?.heat?.zoom(factor);
}

export function move(x, y) {
  page?.heat?.move(x, y);
}

export function showWhole() {
  if (page?.heat) looked(page, whole(page.about));
}

// Fit the colours to the values in sight, instead of those that were shown first.
export function fitColours() {
  if (!page?.heat?.picture) return;
  state.limit = "";
  page.limits = null;
  put(page, page.heat.picture);
  looked(page, page.heat.region);
}

function shown(view) {
  const isChange = state.show === "difference" || state.show === "changed";
  if (!LABELS[state.show] || (isChange && !view.against)) return view.against ? "difference" : "value";
  return state.show;
}

async function fetched(view, region, detail) {
  const what = shown(view);
  const asked = {
    step: state.step, tensor: state.tensor, show: what, detail,
    against: what === "difference" || what === "changed" ? view.against : "",
    rows: `${region.top}:${region.bottom}`, columns: `${region.left}:${region.right}`,
    height: view.heat.height, width: Math.min(MOST_CELLS, view.heat.width),
  };
  let picture;
  try {
    picture = await api.picture(asked);
  } catch (error) {
    if (page !== view) return;
    view.wrong.hidden = false;
    view.wrong.textContent = error.message;
    counted(view);
    return;
  }
  if (picture === null || page !== view) return;
  if (view.limits?.what !== what) view.limits = null;
  picture.what = what;
  put(view, picture);
  counted(view);
  if (!picture.is_whole && !detail) drawnFiner(view, region);
}

function put(view, picture) {
  const what = picture.what;
  view.limits ??= { what, ...limitsOf(picture, what) };
  const colours = scale(KINDS[what], view.limits.least, view.limits.most);
  view.heat.put(picture, colours);
  paintedLegend(view, colours);
  const all = (picture.rows[1] - picture.rows[0]) * (picture.columns[1] - picture.columns[0]);
  const can = picture.errors.length ? " that can be read" : "";
  const part = picture.is_whole ? `All values in sight${can} are in the picture.`
    : `The picture is of ${percent(picture.items / all)} of the values in sight, evenly spread.`;
  const position = `Rows ${ranged(...picture.rows)}, columns ${ranged(...picture.columns)}.`;
  view.note.textContent = `${position} ${part} Beside it: root mean squares of rows and columns.`;
  view.wrong.hidden = !picture.errors.length;
  view.wrong.textContent = picture.errors.join("\n");
  view.heat.node.dataset.shown = `${what} ${picture.rows.join(":")} ${picture.columns.join(":")}`;
  view.heat.node.dataset.whole = picture.is_whole;
}

// The numbers at the ends of the colours: from the address, or from the picture's cells without the
// outermost half per cent. Later pictures of the tensor keep them.
function limitsOf(picture, what) {
  if (what === "changed") return { least: 0, most: 1 };
  const wanted = /^(-?[\d.e+-]+):([\d.e+-]+)$/.exec(state.limit)?.slice(1).map(Number);
  const isLog = KINDS[what] === "log";
  if (wanted?.every(Number.isFinite) && wanted[0] < wanted[1] && (wanted[0] > 0 || !isLog)) {
    return { least: wanted[0], most: wanted[1] };
  }
  const isSigned = KINDS[what] === "diverging";
  const values = picture.cells.map(Math.abs).filter((v) => Number.isFinite(v) && v > 0).sort();
  const at = (part) => values[Math.floor(part * (values.length - 1))] ?? 1;
  const most = at(0.995);
  const least = isSigned ? -most : Math.min(at(0.005), most);
  return { least, most };
}

function paintedLegend(view, colours) {
  const strip = element("canvas");
  paintLegend(strip, colours);
  const { least, most } = view.limits;
  const format = colours.kind === "linear" ? percent : digits;
  let beyond = 0;
  for (const cell of view.heat.picture.cells) beyond = Math.max(beyond, Math.abs(cell) || 0);
  const more = beyond > most * 1.001 && Number.isFinite(beyond) ? ` (largest: ${digits(beyond)})` : "";
  view.legend.replaceChildren(format(least), strip, `${format(most)}${more}`);
}

// Show the value of the cell under the pointer.
function showCell(cell) {
  const view = page;
  if (!view) return;
  if (!cell) {
    view.readout.textContent = "";
    return;
  }
  const [row, lastRow] = cell.rows;
  const [column, lastColumn] = cell.columns;
  const isOne = lastRow - row === 1 && lastColumn - column === 1;
  const position = isOne ? `[${indexOf(view.about, row, column).join(", ")}]`
    : `rows ${ranged(row, lastRow)}, columns ${ranged(column, lastColumn)}:`;
  const format = shown(view) === "changed" ? percent : (v) => digits(v, 4);
  const value = cell.text ?? (Number.isFinite(cell.value) ? format(cell.value) : "");
  const bits = cell.bits && shown(view) !== "changed" ? ` (bits ${cell.bits})` : "";
  const state = cell.state ? ` ${cell.state}` : "";
  view.readout.textContent = `${position} ${isOne ? "= " : ""}${value}${bits}${state}`;
}

// The first and the last of some rows or columns.
function ranged(first, stop) {
  return stop - first === 1 ? `${first}` : `${first} to ${stop - 1}`;
}

// The index in the tensor of an item of its sheet.
function indexOf(about, row, column) {
  if (about.is_wrapped) return [row * about.columns + column];
  if (!about.shape.length) return [];
  const leading = about.shape.slice(0, -1);
  const found = [column];
  let rest = row;
  for (const length of leading.reverse()) {
    found.unshift(rest % length);
    rest = Math.floor(rest / length);
  }
  return found;
}

function tools(view) {
  const names = Object.keys(LABELS).filter(
    (name) => view.against || (name !== "difference" && name !== "changed")
  );
  view.show = element(
    "select", { id: "show", onchange: (event) => show({ show: event.target.value, limit: "" }) },
    ...names.map((name) => element("option", { value: name }, LABELS[name]))
  );
  const button = (id, text, title, onclick) =>
    element("button", { id, type: "button", title, onclick }, text);
  return element(
    "div", { class: "tools" },
    element("label", {}, "show: ", view.show),
    element("span", {},
      button("zoom-in", "+", "zoom in (+)", () => zoom(2)), " ",
      button("zoom-out", "−", "zoom out (−)", () => zoom(0.5)), " ",
      button("all", "All", "all of the tensor (0)", showWhole), " ",
      button("fit", "Fit colours", "colours from what is in sight (c)", fitColours)),
    view.legend
  );
}

function facts(row, about) {
  const times = row && row.codec !== "none" && ratio(row);
  const entries = [
    ["dtype", about.dtype],
    ["shape", shaped(about.shape)],
    ["size", size(about.nbytes)],
    ["stored in", times ? `${size(row.stored_nbytes)} (${digits(times, 4)}×, ` +
      `${digits(bitsPerValue(row), 4)} bits per value)` : ""],
    ["codec", row && row.codec !== "none" ? [row.codec, row.level].filter(Boolean).join(" ") : ""],
    ["chunks", row && row.codec !== "none" && about.nbytes ? shaped(about.chunks) : ""],
    ["kind", row?.kind ?? ""],
    ["shown as", about.is_wrapped ? `rows of ${about.columns}` :
      about.shape.length > 2 ? `${about.rows} rows of ${about.columns}` : ""],
  ];
  return element("dl", { class: "facts" },
    ...entries.filter(([, text]) => text).map(([name, text]) =>
      element("div", {}, element("dt", {}, `${name}: `), element("dd", {}, text))));
}

// One tensor: its picture, and what there is to tell of it.

import { api } from "./api.js";
import { paused } from "./busy.js";
import { paintLegend, scale } from "./colours.js";
import { bitsAValue, byId, digits, element, percent, ratio, shaped, size } from "./dom.js";
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
// A picture is asked for when the wheel has stopped, and a finer one after it.
const drawnSoon = paused(60, (own, region) => fetched(own, region, ""));
const drawnFiner = paused(250, (own, region) => fetched(own, region, "fine"));
// The most cells that are asked for; a wider canvas has wider cells.
const MOST_CELLS = 2048;

// What there is to see, and what was asked for last, which takes its place once something is known.
let page = null;
let wanted = null;

// Draw the page of a tensor.
//   row      of `bf16codecs info`, if the checkpoint's contents are known
//   against  what it is compared with; "" if nothing
//   isFar    whether what is read comes from a server
export async function tensor(row, against, isFar) {
  const own = { name: state.tensor, row, against };
  wanted = own;
  const main = byId("main");
  if (page?.name !== own.name) {
    const reading = element("p", { class: "soft reading" }, "Reading …");
    main.replaceChildren(element("h1", {}, own.name), reading);
  }
  let about;
  try {
    about = await api.tensor({ step: state.step, tensor: own.name });
  } catch (error) {
    page = null;
    main.replaceChildren(element("h1", {}, own.name));
    throw error;
  }
  if (about === null || wanted !== own) return;
  const before = page;
  page = own;
  own.about = { ...about, is_far: isFar };
  if (!about.rows || !about.columns) {
    const nothing = element("p", {}, "It has no values.");
    main.replaceChildren(element("h1", {}, own.name), facts(row, about), nothing);
  } else if (before?.heat && before.about.rows === about.rows && before.about.columns === about.columns) {
    kept(own, before);
  } else built(own);
}

// Another step of the same tensor: what there is stays until its own is there, with its colours.
function kept(own, before) {
  for (const key of ["heat", "readout", "note", "wrong", "legend", "panels", "limits"]) {
    own[key] = before[key];
  }
  const main = byId("main");
  main.querySelector(".facts").replaceWith(facts(own.row, own.about));
  main.querySelector(".tools").replaceWith(tools(own));
  refresh();
}

function built(own) {
  const { about, row } = own;
  const main = byId("main");
  const height = Math.max(110, Math.min(480, (760 * about.rows) / about.columns));
  own.heat = new Heat(about, Math.round(height), (region) => looked(page, region), told);
  own.readout = element("p", { class: "readout", id: "readout", role: "status" });
  own.note = element("p", { class: "soft", id: "note" });
  own.wrong = element("p", { class: "wrong", id: "damage", hidden: true });
  own.legend = element("span", { class: "legend" });
  own.panels = element("div", { class: "panels", id: "panels" });
  main.replaceChildren(
    element("h1", {}, own.name), facts(row, about), tools(own), own.heat.node, own.readout,
    own.note, own.wrong, own.panels
  );
  refresh();
}

// Count once there is something to see: both at once take longer than either.
function counted(own) {
  if (own.isCounted) return;
  own.isCounted = true;
  panels(own.panels, own.about, own.against);
}

// Another part of it is wanted: with the colours that there are, which a copied address keeps.
function looked(own, region) {
  const limit = own.limits ? `${own.limits.least}:${own.limits.most}` : "";
  const place = texts(region, own.about);
  show({ ...place, limit: place.rows || place.columns ? limit : "" });
}

// Draw what the address says now: another part, or another thing to show.
export function refresh() {
  const own = page;
  if (!own?.heat) return;
  const region = parsed(state.rows, state.columns, own.about);
  own.heat.look(region);
  own.show.value = shown(own);
  drawnFiner.cancel();
  if (own.heat.picture) drawnSoon(own, region);
  else fetched(own, region, "");
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

// Colours from what is in sight, not from what was seen first.
export function fitColours() {
  if (!page?.heat?.picture) return;
  state.limit = "";
  page.limits = null;
  put(page, page.heat.picture);
  looked(page, page.heat.region);
}

function shown(own) {
  const isChange = state.show === "difference" || state.show === "changed";
  if (!LABELS[state.show] || (isChange && !own.against)) return own.against ? "difference" : "value";
  return state.show;
}

async function fetched(own, region, detail) {
  const what = shown(own);
  const asked = {
    step: state.step, tensor: state.tensor, show: what, detail,
    against: what === "difference" || what === "changed" ? own.against : "",
    rows: `${region.top}:${region.bottom}`, columns: `${region.left}:${region.right}`,
    height: own.heat.height, width: Math.min(MOST_CELLS, own.heat.width),
  };
  let picture;
  try {
    picture = await api.picture(asked);
  } catch (error) {
    if (page !== own) return;
    own.wrong.hidden = false;
    own.wrong.textContent = error.message;
    counted(own);
    return;
  }
  if (picture === null || page !== own) return;
  if (own.limits?.what !== what) own.limits = null;
  picture.what = what;
  put(own, picture);
  counted(own);
  if (!picture.is_whole && !detail) drawnFiner(own, region);
}

function put(own, picture) {
  const what = picture.what;
  own.limits ??= { what, ...limitsOf(picture, what) };
  const colours = scale(KINDS[what], own.limits.least, own.limits.most);
  own.heat.put(picture, colours);
  paintedLegend(own, colours);
  const all = (picture.rows[1] - picture.rows[0]) * (picture.columns[1] - picture.columns[0]);
  const can = picture.errors.length ? " that can be read" : "";
  const part = picture.is_whole ? `All values in sight${can} are in the picture.`
    : `The picture is of ${percent(picture.items / all)} of the values in sight, evenly spread.`;
  const place = `Rows ${ranged(...picture.rows)}, columns ${ranged(...picture.columns)}.`;
  own.note.textContent = `${place} ${part} Beside it: root mean squares of rows and columns.`;
  own.wrong.hidden = !picture.errors.length;
  own.wrong.textContent = picture.errors.join("\n");
  own.heat.node.dataset.shown = `${what} ${picture.rows.join(":")} ${picture.columns.join(":")}`;
  own.heat.node.dataset.whole = picture.is_whole;
}

// The numbers at the ends of the colours: of the picture's own cells, without the last half per
// cent, and of all pictures of this tensor until it is asked for others.
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

function paintedLegend(own, colours) {
  const strip = element("canvas");
  paintLegend(strip, colours);
  const { least, most } = own.limits;
  const format = colours.kind === "linear" ? percent : digits;
  let beyond = 0;
  for (const cell of own.heat.picture.cells) beyond = Math.max(beyond, Math.abs(cell) || 0);
  const more = beyond > most * 1.001 && Number.isFinite(beyond) ? ` (largest: ${digits(beyond)})` : "";
  own.legend.replaceChildren(format(least), strip, `${format(most)}${more}`);
}

function told(cell) {
  const own = page;
  if (!own) return;
  if (!cell) {
    own.readout.textContent = "";
    return;
  }
  const [row, lastRow] = cell.rows;
  const [column, lastColumn] = cell.columns;
  const isOne = lastRow - row === 1 && lastColumn - column === 1;
  const place = isOne ? `[${indexOf(own.about, row, column).join(", ")}]`
    : `rows ${ranged(row, lastRow)}, columns ${ranged(column, lastColumn)}:`;
  const format = shown(own) === "changed" ? percent : (v) => digits(v, 4);
  const value = cell.text ?? (Number.isFinite(cell.value) ? format(cell.value) : "");
  const bits = cell.bits && shown(own) !== "changed" ? ` (bits ${cell.bits})` : "";
  const state = cell.state ? ` ${cell.state}` : "";
  own.readout.textContent = `${place} ${isOne ? "= " : ""}${value}${bits}${state}`;
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

function tools(own) {
  const names = Object.keys(LABELS).filter(
    (name) => own.against || (name !== "difference" && name !== "changed")
  );
  own.show = element(
    "select", { id: "show", onchange: (event) => show({ show: event.target.value, limit: "" }) },
    ...names.map((name) => element("option", { value: name }, LABELS[name]))
  );
  const button = (id, text, title, onclick) =>
    element("button", { id, type: "button", title, onclick }, text);
  return element(
    "div", { class: "tools" },
    element("label", {}, "show: ", own.show),
    element("span", {},
      button("zoom-in", "+", "zoom in (+)", () => zoom(2)), " ",
      button("zoom-out", "−", "zoom out (−)", () => zoom(0.5)), " ",
      button("all", "All", "all of the tensor (0)", showWhole), " ",
      button("fit", "Fit colours", "colours from what is in sight (c)", fitColours)),
    own.legend
  );
}

function facts(row, about) {
  const times = row && row.codec !== "none" && ratio(row);
  const own = [
    ["dtype", about.dtype],
    ["shape", shaped(about.shape)],
    ["size", size(about.nbytes)],
    ["stored in", times ? `${size(row.stored_nbytes)} (${digits(times, 4)}×, ` +
      `${digits(bitsAValue(row), 4)} bits a value)` : ""],
    ["codec", row && row.codec !== "none" ? [row.codec, row.level].filter(Boolean).join(" ") : ""],
    ["chunks", row && row.codec !== "none" && about.nbytes ? shaped(about.chunks) : ""],
    ["kind", row?.kind ?? ""],
    ["shown as", about.is_wrapped ? `rows of ${about.columns}` :
      about.shape.length > 2 ? `${about.rows} rows of ${about.columns}` : ""],
  ];
  return element("dl", { class: "facts" },
    ...own.filter(([, text]) => text).map(([name, text]) =>
      element("div", {}, element("dt", {}, `${name}: `), element("dd", {}, text))));
}

// The whole model as nested rectangles, each as large as its tensor ("squarified": Bruls, Huizing
// and van Wijk, 2000).

import { css, textOn } from "./colours.js";
import { drawn } from "./dom.js";
import { grouped } from "./tree.js";

// Groups that are smaller than this many pixels are drawn as one rectangle.
const LEAST = 2;
// Height of the name above a group that has room for it.
const HEAD = 16;

// Divide a rectangle into one for each item, largest first, with shapes close to squares.
function squarified(items, box) {
  const total = items.reduce((sum, item) => sum + item.nbytes, 0);
  const found = [];
  let rest = { ...box };
  let left = total;
  let from = 0;
  const sorted = [...items].sort((a, b) => b.nbytes - a.nbytes);
  while (from < sorted.length && left > 0) {
    const side = Math.min(rest.width, rest.height);
    const unit = (rest.width * rest.height) / left;
    let to = from;
    let sum = 0;
    let worst = Infinity;
    while (to < sorted.length) {
      const next = sum + sorted[to].nbytes * unit;
      const thick = next / side;
      const ends = [sorted[from].nbytes, sorted[to].nbytes].map((n) => (n * unit) / thick);
      const aspect = Math.max(...ends.map((long) => Math.max(thick / long, long / thick)));
      if (aspect > worst) break;
      worst = aspect;
      sum = next;
      to += 1;
    }
    const thick = sum / side || 0;
    const isWide = rest.width >= rest.height;
    let along = isWide ? rest.y : rest.x;
    for (const item of sorted.slice(from, to)) {
      const long = (item.nbytes * unit) / thick || 0;
      found.push({
        item,
        x: isWide ? rest.x : along,
        y: isWide ? along : rest.y,
        width: isWide ? thick : long,
        height: isWide ? long : thick,
      });
      along += long;
      left -= item.nbytes;
    }
    if (isWide) rest = { ...rest, x: rest.x + thick, width: rest.width - thick };
    else rest = { ...rest, y: rest.y + thick, height: rest.height - thick };
    from = to;
  }
  return found;
}

function laid(group, box, depth, leaves, frames) {
  const items = [...group.groups, ...group.rows].filter((item) => item.nbytes > 0);
  for (const tile of squarified(items, box)) {
    if (!tile.item.groups) leaves.push(tile);
    else if (tile.width < LEAST || tile.height < LEAST) leaves.push(tile);
    else {
      const hasHead = depth < 3 && tile.width > 40 && tile.height > 60;
      if (depth < 3) frames.push({ ...tile, hasHead });
      const inner = hasHead ? { ...tile, y: tile.y + HEAD, height: tile.height - HEAD } : tile;
      laid(tile.item, inner, depth + 1, leaves, frames);
    }
  }
}

// Draw a treemap.
//   rows    tensors in `bf16codecs info --json`
//   colour  {value, a function of a row; scale}; a row without a value has no colour
//   about   returns the text that the pointer shows for a row
//   choose  called with the name of a tensor
export function treemap(rows, width, height, colour, about, choose) {
  const leaves = [];
  const frames = [];
  laid(grouped(rows), { x: 0, y: 0, width, height }, 0, leaves, frames);
  const rectangles = leaves.map((tile) => {
    const row = tile.item.groups ? null : tile.item;
    const value = row ? colour.value(row) : null;
    const known = value !== null && value !== undefined;
    const attributes = {
      x: tile.x, y: tile.y, width: Math.max(0, tile.width), height: Math.max(0, tile.height),
      "data-tensor": row?.name,
      onclick: row ? () => choose(row.name) : null,
    };
    const rectangle = drawn("rect", attributes);
    rectangle.style.fill = known ? css(colour.scale, value) : "var(--nothing)";
    const title = row ? about(row) : `${tile.item.path}: ${tile.item.count} small tensors`;
    rectangle.append(drawn("title", {}, title));
    return rectangle;
  });
  const texts = leaves.map((tile) => label(tile, colour)).filter(Boolean);
  const outlines = frames.flatMap(({ x, y, width: w, height: h, hasHead, item }) => {
    const name = hasHead ? fitting([item.name, item.name.split(".").at(-1)], w) : null;
    return [
      drawn("rect", { class: "group", x, y, width: w, height: h }),
      ...(name ? [drawn("text", { class: "head", x: x + 4, y: y + 12 }, name)] : []),
    ];
  });
  return drawn(
    "svg",
    { class: "treemap", viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
      "aria-label": "all tensors, with areas in proportion to their sizes; the tree has their names" },
    ...rectangles, ...outlines, ...texts
  );
}

// The first text that fits a width.
function fitting(texts, width) {
  return texts.find((text) => text && text.length * 6.4 < width - 8);
}

function label(tile, colour) {
  if (tile.height < 16 || tile.width < 46 || tile.item.groups) return null;
  const name = tile.item.last.replace(/\.weight$/, "");
  const text = fitting([tile.item.last, name, name.split(".").at(-1)], tile.width);
  if (!text) return null;
  const value = colour.value(tile.item);
  const found = drawn("text", { x: tile.x + 4, y: tile.y + 13 }, text);
  if (value !== null && value !== undefined) found.style.fill = textOn(colour.scale, value);
  return found;
}

// The whole model as nested rectangles, each as large as its tensor ("squarified": Bruls, Huizing
// and van Wijk, 2000).

import { css, textOn } from "./colours.js";
import { drawn } from "./dom.js";
import { grouped } from "./tree.js";

// What is smaller than this many pixels is drawn with others as one.
const LEAST = 2;
// Where there is room, groups have their names above them.
const HEAD = 16;

// Rectangles for numbers that fill a rectangle, largest first, as near to squares as they get.
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
      const own = Math.max(...ends.map((long) => Math.max(thick / long, long / thick)));
      if (own > worst) break;
      worst = own;
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
  for (const own of squarified(items, box)) {
    if (!own.item.groups) leaves.push(own);
    else if (own.width < LEAST || own.height < LEAST) leaves.push(own);
    else {
      const hasHead = depth < 3 && own.width > 40 && own.height > 60;
      if (depth < 3) frames.push({ ...own, hasHead });
      const inner = hasHead ? { ...own, y: own.y + HEAD, height: own.height - HEAD } : own;
      laid(own.item, inner, depth + 1, leaves, frames);
    }
  }
}

// Draw a treemap.
//   rows    of `bf16codecs info`
//   colour  {value: of a row, scale}; a row without a value has no colour
//   about   of a row: what the pointer is told
//   choose  called with the name of a tensor
export function treemap(rows, width, height, colour, about, choose) {
  const leaves = [];
  const frames = [];
  laid(grouped(rows), { x: 0, y: 0, width, height }, 0, leaves, frames);
  const rectangles = leaves.map((own) => {
    const row = own.item.groups ? null : own.item;
    const value = row ? colour.value(row) : null;
    const known = value !== null && value !== undefined;
    const attributes = {
      x: own.x, y: own.y, width: Math.max(0, own.width), height: Math.max(0, own.height),
      "data-tensor": row?.name,
      onclick: row ? () => choose(row.name) : null,
    };
    const rectangle = drawn("rect", attributes);
    rectangle.style.fill = known ? css(colour.scale, value) : "var(--nothing)";
    const told = row ? about(row) : `${own.item.path}: ${own.item.count} small tensors`;
    rectangle.append(drawn("title", {}, told));
    return rectangle;
  });
  const texts = leaves.map((own) => label(own, colour)).filter(Boolean);
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
      "aria-label": "all tensors, each as large as it is; the tree has their names" },
    ...rectangles, ...outlines, ...texts
  );
}

// The first text that a width has room for.
function fitting(texts, width) {
  return texts.find((text) => text && text.length * 6.4 < width - 8);
}

function label(own, colour) {
  if (own.height < 16 || own.width < 46 || own.item.groups) return null;
  const name = own.item.last.replace(/\.weight$/, "");
  const text = fitting([own.item.last, name, name.split(".").at(-1)], own.width);
  if (!text) return null;
  const value = colour.value(own.item);
  const found = drawn("text", { x: own.x + 4, y: own.y + 13 }, text);
  if (value !== null && value !== undefined) found.style.fill = textOn(colour.scale, value);
  return found;
}

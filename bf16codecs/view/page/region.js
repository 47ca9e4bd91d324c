// Parts of a sheet: rows [top, bottom) and columns [left, right), in whole items.

export function whole(sheet) {
  return { top: 0, bottom: sheet.rows, left: 0, right: sheet.columns };
}

// Parse texts such as "0:512"; missing or invalid ones stand for all rows or columns.
export function parsed(rows, columns, sheet) {
  const [top, bottom] = limits(rows, sheet.rows);
  const [left, right] = limits(columns, sheet.columns);
  return { top, bottom, left, right };
}

function limits(text, size) {
  const found = /^(\d+):(\d+)$/.exec(text);
  if (!found) return [0, size];
  const [first, last] = found.slice(1).map((part) => Math.min(Number(part), size));
  return first < last ? [first, last] : [0, size];
}

// The texts of a region in the address, empty for all rows or columns.
export function texts(region, sheet) {
  const isWide = region.left === 0 && region.right === sheet.columns;
  const isTall = region.top === 0 && region.bottom === sheet.rows;
  return {
    rows: isTall ? "" : `${region.top}:${region.bottom}`,
    columns: isWide ? "" : `${region.left}:${region.right}`,
  };
}

// Zoom by a factor around a point, in fractions of the region.
export function zoomed(region, sheet, factor, x = 0.5, y = 0.5) {
  const [left, right] = stretched(region.left, region.right, sheet.columns, factor, x);
  const [top, bottom] = stretched(region.top, region.bottom, sheet.rows, factor, y);
  return { top, bottom, left, right };
}

function stretched(first, last, size, factor, at) {
  const fixed = first + at * (last - first);
  let length = Math.round((last - first) / factor);
  // At least one item more or less, or zooming would get stuck.
  if (factor > 1 && length === last - first) length -= 1;
  if (factor < 1 && length === last - first) length += 1;
  length = Math.max(Math.min(4, size), Math.min(size, length));
  const start = Math.max(0, Math.min(size - length, Math.round(fixed - at * length)));
  return [start, start + length];
}

// Move by fractions of the region.
export function moved(region, sheet, x, y) {
  const [left, right] = shifted(region.left, region.right, sheet.columns, x);
  const [top, bottom] = shifted(region.top, region.bottom, sheet.rows, y);
  return { top, bottom, left, right };
}

function shifted(first, last, size, part) {
  const by = Math.round(part * (last - first));
  const start = Math.max(0, Math.min(size - (last - first), first + by));
  return [start, start + last - first];
}

// The part of a region between two points, in fractions of the region.
export function boxed(region, a, b) {
  const along = (first, last, from, to) => {
    const [low, high] = [Math.min(from, to), Math.max(from, to)];
    const start = Math.floor(first + low * (last - first));
    return [start, Math.min(last, Math.max(start + 1, Math.ceil(first + high * (last - first))))];
  };
  const [left, right] = along(region.left, region.right, a.x, b.x);
  const [top, bottom] = along(region.top, region.bottom, a.y, b.y);
  return { top, bottom, left, right };
}

export function same(a, b) {
  return a.top === b.top && a.bottom === b.bottom && a.left === b.left && a.right === b.right;
}

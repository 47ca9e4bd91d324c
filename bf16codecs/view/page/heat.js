// A picture of a part of a tensor that can be zoomed and moved, with the scales of its rows and
// columns beside it.

import { index, textOn } from "./colours.js";
import { element, styled } from "./dom.js";
import { boxed, moved, same, zoomed } from "./region.js";

const MARGIN = 64;
const STATES = ["", "infinite or NaN", "could not be read", "behind the end"];
// From this size on, a cell has room for its number.
const TEXT_WIDTH = 52;
const TEXT_HEIGHT = 15;

export class Heat {
  // sheet    {rows, columns} of the tensor
  // change   called with the region that the user asks for
  // read     called with the row and column of a cell under the pointer, or null
  constructor(sheet, height, change, read) {
    Object.assign(this, { sheet, height, change, read, region: null, picture: null, scale: null });
    this.cells = element("canvas", {
      class: "cells", tabindex: "0", role: "img", "data-cells": "",
      "aria-label": "values of the tensor; + and - zoom, w, a, s and d move, arrows tell values",
    });
    this.right = element("canvas", { "aria-hidden": "true" });
    this.below = element("canvas", { "aria-hidden": "true" });
    this.node = element("div", { class: "heat" }, this.cells, this.right, this.below);
    this.listen();
  }

  get width() {
    return Math.max(160, Math.round(this.node.clientWidth) - MARGIN - 3);
  }

  // Show a region: at once the known part, and all of it when its picture comes.
  look(region) {
    this.region = region;
    this.cursor = null;
    this.paint();
  }

  put(picture, scale) {
    this.picture = picture;
    this.scale = scale;
    this.image = painted(picture, scale);
    this.paint();
  }

  paint() {
    const { width, height } = this;
    fit(this.cells, width, height);
    fit(this.right, MARGIN, height);
    fit(this.below, width, MARGIN);
    if (!this.picture) return;
    const context = this.cells.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.clearRect(0, 0, width, height);
    const [top, bottom] = this.picture.rows;
    const [left, right] = this.picture.columns;
    const across = width / (this.region.right - this.region.left);
    const down = height / (this.region.bottom - this.region.top);
    context.drawImage(
      this.image,
      (left - this.region.left) * across, (top - this.region.top) * down,
      (right - left) * across, (bottom - top) * down
    );
    if (this.isCurrent && this.picture.texts) this.paintTexts(context);
    if (this.isCurrent && this.cursor) this.paintCursor(context);
    for (const canvas of [this.right, this.below]) {
      canvas.getContext("2d").clearRect(0, 0, canvas.width, canvas.height);
    }
    if (!this.isCurrent) return;
    const colour = styled("--accent");
    paintScales(this.right, this.picture.rowScales, colour, true);
    paintScales(this.below, this.picture.columnScales, colour, false);
  }

  paintTexts(context) {
    const { texts, cells, height: rows, width: columns } = this.picture;
    const [across, down] = [this.width / columns, this.height / rows];
    if (across < TEXT_WIDTH || down < TEXT_HEIGHT) return;
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let i = 0; i < texts.length; i += 1) {
      context.fillStyle = Number.isFinite(cells[i]) ? textOn(this.scale, cells[i]) : "#111";
      const [x, y] = [(i % columns) + 0.5, Math.floor(i / columns) + 0.5];
      context.fillText(texts[i], x * across, y * down, across - 2);
    }
  }

  paintCursor(context) {
    const { width, height } = this.picture;
    const [across, down] = [this.width / width, this.height / height];
    const column = Math.floor(this.cursor.x * width);
    const row = Math.floor(this.cursor.y * height);
    context.lineWidth = 2;
    for (const [colour, out] of [["#fff", 1], ["#111", 3]]) {
      context.strokeStyle = colour;
      context.strokeRect(
        column * across - out, row * down - out, across + 2 * out, down + 2 * out
      );
    }
  }

  // Zoom around the middle, or move.
  zoom(factor, x, y) {
    this.change(zoomed(this.region, this.sheet, factor, x, y));
  }

  move(x, y) {
    this.change(moved(this.region, this.sheet, x, y));
  }

  at(event) {
    const box = this.cells.getBoundingClientRect();
    const part = (value) => Math.max(0, Math.min(1, value));
    return {
      x: part((event.clientX - box.left) / box.width),
      y: part((event.clientY - box.top) / box.height),
    };
  }

  listen() {
    const { cells } = this;
    cells.addEventListener("wheel", (event) => {
      event.preventDefault();
      const { x, y } = this.at(event);
      this.zoom(Math.exp(-Math.max(-120, Math.min(120, event.deltaY)) / 300), x, y);
    }, { passive: false });
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    cells.addEventListener("keydown", (event) => {
      if (!steps[event.key] || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      this.step(...steps[event.key]);
    });
    cells.addEventListener("blur", () => {
      this.cursor = null;
      this.paint();
    });
    cells.addEventListener("dblclick", (event) => {
      const { x, y } = this.at(event);
      this.zoom(event.shiftKey ? 1 / 4 : 4, x, y);
    });
    cells.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      this.held = { from: this.at(event), region: this.region, isBox: event.shiftKey };
      cells.setPointerCapture(event.pointerId);
    });
    cells.addEventListener("pointermove", (event) => {
      const to = this.at(event);
      if (this.held) this.drag(to);
      else this.tell(to);
    });
    const end = (event) => {
      const { held } = this;
      this.held = null;
      cells.classList.remove("moving");
      if (held?.isBox && event.type === "pointerup") {
        const to = this.at(event);
        if (Math.hypot(to.x - held.from.x, to.y - held.from.y) > 0.01) {
          this.change(boxed(held.region, held.from, to));
        } else this.paint();
      } else if (held && event.type === "pointerup") this.tell(this.at(event));
    };
    cells.addEventListener("pointerup", end);
    cells.addEventListener("pointercancel", end);
    cells.addEventListener("pointerleave", () => this.held || this.read(null));
  }

  drag(to) {
    const { from, region, isBox } = this.held;
    if (isBox) {
      this.paint();
      const context = this.cells.getContext("2d");
      context.strokeStyle = styled("--second");
      context.lineWidth = 2;
      context.strokeRect(
        from.x * this.width, from.y * this.height,
        (to.x - from.x) * this.width, (to.y - from.y) * this.height
      );
      return;
    }
    const next = moved(region, this.sheet, from.x - to.x, from.y - to.y);
    if (same(next, this.region)) return;
    this.cells.classList.add("moving");
    this.change(next);
  }

  // Whether the picture is that of the region in sight.
  get isCurrent() {
    if (!this.picture || !this.region) return false;
    const [top, bottom] = this.picture.rows;
    const [left, right] = this.picture.columns;
    return same(this.region, { top, bottom, left, right });
  }

  // Move the cursor by cells, and report the cell there.
  step(across, down) {
    if (!this.isCurrent) return;
    const { width, height } = this.picture;
    const { x, y } = this.cursor ?? { x: 0.5 - across / width, y: 0.5 - down / height };
    const cell = (part, count, by) =>
      (Math.max(0, Math.min(count - 1, Math.floor(part * count) + by)) + 0.5) / count;
    this.cursor = { x: cell(x, width, across), y: cell(y, height, down) };
    this.paint();
    this.tell(this.cursor);
  }

  // Report the cell under a point.
  tell({ x, y }) {
    const picture = this.picture;
    if (!this.isCurrent) return;
    const row = Math.min(picture.height - 1, Math.floor(y * picture.height));
    const column = Math.min(picture.width - 1, Math.floor(x * picture.width));
    const i = row * picture.width + column;
    this.read({
      rows: [picture.row_edges[row], picture.row_edges[row + 1]],
      columns: [picture.column_edges[column], picture.column_edges[column + 1]],
      value: picture.cells[i], state: STATES[picture.states[i]],
      text: picture.texts?.[i], bits: picture.bits?.[i],
    });
  }
}

// Make a canvas as large as it is shown, with sharp pixels.
function fit(canvas, width, height) {
  const dense = window.devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * dense);
  canvas.height = Math.round(height * dense);
  canvas.getContext("2d").scale(dense, dense);
}

// The cells as an image of as many pixels.
function painted(picture, scale) {
  const { width, height, cells, states } = picture;
  const canvas = element("canvas", { width, height });
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const strange = [null, [255, 0, 255], [120, 120, 120], null];
  for (let i = 0; i < cells.length; i += 1) {
    const state = states[i];
    // A cell with some values that are not finite shows the others.
    if (Number.isFinite(cells[i]) && state < 2) {
      const at = 3 * index(scale, cells[i]);
      image.data.set(scale.colours.subarray(at, at + 3), 4 * i);
      image.data[4 * i + 3] = 255;
    } else if (strange[state]) image.data.set([...strange[state], 255], 4 * i);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

// Root mean squares as an area, from 0 to the largest.
function paintScales(canvas, scales, colour, isUpright) {
  const context = canvas.getContext("2d");
  const dense = window.devicePixelRatio || 1;
  const [width, height] = [canvas.width / dense, canvas.height / dense];
  const [along, across] = isUpright ? [height, width] : [width, height];
  let most = 0;
  for (const value of scales) if (value > most && Number.isFinite(value)) most = value;
  if (!most) return;
  context.fillStyle = colour;
  const each = along / scales.length;
  for (let i = 0; i < scales.length; i += 1) {
    const long = Number.isFinite(scales[i]) ? (scales[i] / most) * (across - 2) : 0;
    if (isUpright) context.fillRect(0, i * each, long, Math.max(each, 0.5));
    else context.fillRect(i * each, 0, Math.max(each, 0.5), long);
  }
}

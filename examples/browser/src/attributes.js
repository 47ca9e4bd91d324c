// What the root of a model store or a run says: docs/store.md, docs/runs.md.

import { CorruptDataError, UnsupportedError } from "./errors.js";
import { isObject } from "./metadata.js";

const NEWEST_LAYOUT = 2;
// Of the segments of a path that this layout makes of a name; nothing else of a stranger's map is
// followed, or it might lead out of the store.
const PATH = /^[A-Za-z0-9_=-]+(?:\/[A-Za-z0-9_=-]+)*$/;

/**
 * @param {any} attributes Of the root.
 * @returns {{ attributes: any, tensors: Map<string, unknown>, steps: number[] | null }} The store's own
 *   attributes; tensors and what is said of each; numbers of steps, or null where it is no run.
 */
export function modelAttributes(attributes) {
  const own = attributes?.bf16codecs;
  if (own === undefined) {
    throw new UnsupportedError("this group is no model store: its attributes have no tensors");
  }
  if (!isObject(own) || !Number.isInteger(own.layout) || own.layout < 1) {
    throw new CorruptDataError("the store's attributes have no layout");
  }
  if (own.layout > NEWEST_LAYOUT) {
    throw new UnsupportedError(
      `the store has layout ${own.layout}, and this reader knows ${NEWEST_LAYOUT}`,
    );
  }
  if (!isObject(own.tensors)) {
    throw new CorruptDataError("the store's attributes have no map of tensors");
  }
  const tensors = new Map(Object.entries(own.tensors));
  return { attributes: own, tensors, steps: own.run === undefined ? null : stepsOf(own) };
}

/** @param {any} attributes */
function stepsOf({ run, steps }) {
  const isRun = isObject(run) && Array.isArray(steps) && steps.length > 0;
  if (!isRun || !steps.every((step) => Number.isInteger(step?.step))) {
    throw new CorruptDataError("the run's attributes have no list of steps");
  }
  return steps.map((/** @type {{ step: number }} */ { step }) => step);
}

/** @typedef {{ path: string, isRounded: boolean }} Place Of which array a tensor is, or the rounding. */

/**
 * Where a tensor is.
 *
 * @param {string} name
 * @param {unknown} value Of the map of tensors.
 * @param {number | null} index Of the step.
 * @returns {Place}
 */
export function placeOf(name, value, index) {
  const forms = (Array.isArray(value) ? value : [value]).map((form) =>
    typeof form === "string" ? { path: form } : form,
  );
  if (!forms.every(isForm)) {
    throw new CorruptDataError(`the store's map leads to no array for "${name}"`);
  }
  const form = forms.find(
    ({ at }) => index === null || at === undefined ||
      at.some((/** @type {[number, number | null]} */ [first, stop]) =>
        first <= index && (stop === null || index < stop)),
  );
  if (form === undefined) throw new RangeError(`"${name}" is not in the model at this step`);
  if (form.difference !== undefined) {
    throw new UnsupportedError(
      `"${name}" is stored as a difference to another store, and this reader reads one store: write` +
        " it without a base (bf16codecs rebase)",
    );
  }
  return { path: form.path ?? form.rounded, isRounded: form.rounded !== undefined };
}

/** @param {any} form */
function isForm(form) {
  if (!isObject(form)) return false;
  const { path, rounded, difference, at } = form;
  if (at !== undefined && !(Array.isArray(at) && at.every(isSpan))) return false;
  const place = path ?? rounded;
  return difference !== undefined || (typeof place === "string" && PATH.test(place));
}

/** @param {any} span */
const isSpan = (span) =>
  Array.isArray(span) && Number.isInteger(span[0]) && (span[1] === null || Number.isInteger(span[1]));

// The directory of a growing frame.

import { Opened } from "./frame.js";

/** @typedef {import("./frame.js").Frame} Frame */
/** @typedef {import("./frame.js").Info} Info */

/**
 * @typedef {object} Version
 * @property {number} offset Of its frame in the growing one.
 * @property {number} size
 * @property {number} parent The version that is its base, or -1.
 */

/** The directory, which tells where the versions' frames are and opens them. */
export class Growing extends Opened {
  /**
   * @param {{ info: () => Info, version: (number: number) => Version, close: () => void,
   *   open: (number: number, head: Uint8Array) => Frame }} calls
   */
  constructor(calls) {
    super(calls.close);
    this.#calls = calls;
    this.info = calls.info();
  }
  #calls;

  /**
   * Where a version is that is there.
   *
   * @param {number} number
   */
  version(number) {
    this.checkOpen();
    return this.#calls.version(number);
  }

  /**
   * Open a version's frame. It is to be closed.
   *
   * @param {number} number
   * @param {Uint8Array} head Its first bytes.
   */
  open(number, head) {
    this.checkOpen();
    return this.#calls.open(number, head);
  }
}

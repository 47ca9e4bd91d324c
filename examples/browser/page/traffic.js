// What was fetched of a store, by how many requests, and what was decoded since it was opened.

import * as zarr from "zarrita";
import { sizeText } from "./words.js";

/** @typedef {import("../src/index.js").Core} Core */

export class Traffic {
  #core;
  #before;
  requests = 0;
  bytes = 0;

  /** @param {Core} core */
  constructor(core) {
    this.#core = core;
    this.#before = { ...core.decoded };
  }

  /**
   * A store at an address, whose requests are counted.
   *
   * @param {string | URL} address
   * @param {() => void} changed
   */
  store(address, changed) {
    const count = async (/** @type {Promise<Uint8Array | undefined>} */ reply) => {
      this.requests += 1;
      const bytes = await reply;
      this.bytes += bytes?.length ?? 0;
      changed();
      return bytes;
    };
    const counted = zarr.defineStoreExtension((/** @type {any} */ inner) => ({
      get: (/** @type {any[]} */ ...call) => count(inner.get(...call)),
      getRange: (/** @type {any[]} */ ...call) => count(inner.getRange(...call)),
    }));
    return /** @type {any} */ (counted)(new zarr.FetchStore(address));
  }

  toString() {
    const decoded = this.#core.decoded.bytes - this.#before.bytes;
    const milliseconds = this.#core.decoded.milliseconds - this.#before.milliseconds;
    return (
      `fetched ${sizeText(this.bytes)} in ${this.requests} request${this.requests === 1 ? "" : "s"};` +
      ` decoded ${sizeText(decoded)} in ${milliseconds.toFixed(1)} ms` +
      (decoded >= 1e6 && milliseconds > 0 ? `, ${(decoded / milliseconds / 1e6).toFixed(2)} GB/s` : "")
    );
  }
}

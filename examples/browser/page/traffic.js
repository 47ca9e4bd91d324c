// What was fetched, and by which requests.

import * as zarr from "zarrita";

export class Traffic {
  requests = 0;
  bytes = 0;

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
}

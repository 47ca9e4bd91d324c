// bf16codecs for zarrita: see ../README.md.

import * as zarr from "zarrita";
import { registerCodecs } from "./codecs.js";
import { loadCore } from "./load.js";

export { Core } from "./core.js";
export { Frame } from "./frame.js";
export { hasVectors, loadCore } from "./load.js";
export { registerCodecs } from "./codecs.js";
export { complexParts, roundToBFloat16, toFloat32 } from "./dtypes.js";
export * from "./errors.js";
export { openModel } from "./model.js";
export { detailsOf, get, withBF16 } from "./store.js";
export { loadZstd } from "./zstd.js";

/**
 * Load the decoder, and add the codecs to zarrita's registry.
 *
 * @param {Parameters<typeof loadCore>[0]} [options]
 * @returns {ReturnType<typeof loadCore>}
 */
export async function load(options) {
  const core = await loadCore(options);
  registerCodecs(/** @type {any} */ (zarr.registry), core);
  return core;
}

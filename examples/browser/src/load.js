// Loads the module: the one with vectors, where the engine has any.

import { Core } from "./core.js";

// A module of nothing but a vector: engines that refuse it have none.
const VECTOR_PROBE = new Uint8Array([
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15,
  253, 98, 11,
]);

/** @returns {boolean} Whether this engine has vectors of 128 bits. */
export const hasVectors = () => WebAssembly.validate(VECTOR_PROBE);

/**
 * Load the decoder.
 *
 * @param {object} [options]
 * @param {URL | string} [options.folder] Where bf16codecs.wasm and bf16codecs-scalar.wasm are, such as
 *   "/wasm/" of the page's host; by default beside these sources, in ../dist.
 * @param {boolean} [options.vectors] Take the module with vectors; by default, if the engine has any.
 * @param {import("./core.js").ZstdDecompress} [options.zstd] For frames of codec "zstd"; without it,
 *   they are refused.
 * @returns {Promise<Core>}
 */
export async function loadCore(options = {}) {
  const vectors = options.vectors ?? hasVectors();
  const name = vectors ? "bf16codecs.wasm" : "bf16codecs-scalar.wasm";
  const address = new URL(name, folderOf(options.folder ?? new URL("../dist/", import.meta.url)));
  return new Core(await compile(address), options.zstd);
}

/** @param {URL | string} folder */
function folderOf(folder) {
  // Of a page, or a worker; Node has none.
  const { document, location } = /** @type {any} */ (globalThis);
  const text = String(folder);
  return new URL(text.endsWith("/") ? text : `${text}/`, document?.baseURI ?? location?.href);
}

/** @param {URL} address */
async function compile(address) {
  if (address.protocol === "file:") {
    // @ts-expect-error A module of Node's, which no page loads.
    const { readFile } = await import("node:fs/promises");
    return WebAssembly.compile(await readFile(address));
  }
  const response = await fetch(address);
  if (!response.ok) throw new Error(`${address}: ${response.status} ${response.statusText}`);
  // Not compileStreaming(): static hosts need not know the content type of .wasm.
  return WebAssembly.compile(await response.arrayBuffer());
}

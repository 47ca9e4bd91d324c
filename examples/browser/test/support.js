// What the tests share: where cases are, a store in a folder, the decoder.

import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { loadCore, loadZstd } from "../src/index.js";

/** Where make_cases.py has written to. */
export const CASES = process.env.BF16CODECS_CASES ?? fileURLToPath(new URL(".cases", import.meta.url));

/** @param {string} name */
export const bytesOf = async (name) => new Uint8Array(await readFile(`${CASES}/${name}`));

/** @param {string} name */
export const jsonOf = async (name) => JSON.parse(await readFile(`${CASES}/${name}`, "utf8"));

/** The decoder in both forms, with vectors and without. */
export async function bothCores() {
  const zstd = await loadZstd();
  return Promise.all([true, false].map((vectors) => loadCore({ vectors, zstd })));
}

/** A store in a folder, which counts what is asked of it. */
export class CountingStore {
  requests = 0;
  bytes = 0;

  /** @param {string} name Of the folder of cases. */
  constructor(name) {
    this.folder = `${CASES}/${name}`;
  }

  async get(key) {
    try {
      return this.#counted(new Uint8Array(await readFile(this.folder + key)));
    } catch (error) {
      if (error.code === "ENOENT" || error.code === "ENOTDIR") return undefined;
      throw error;
    }
  }

  async getRange(key, range) {
    const before = this.bytes;
    const whole = await this.get(key);
    if (whole === undefined) return undefined;
    const offset = "offset" in range ? range.offset : whole.length - range.suffixLength;
    const part = whole.slice(offset, offset + (range.length ?? range.suffixLength));
    this.bytes = before + part.length;
    return part;
  }

  #counted(bytes) {
    this.requests += 1;
    this.bytes += bytes.length;
    return bytes;
  }
}

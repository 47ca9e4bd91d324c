// What the tests share: where cases are, a store in a folder, the decoder.

import assert from "node:assert/strict";
import { cp, mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
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

/** A store of which one file is another one, or, if that is undefined, is not there. */
export class ReplacedStore extends CountingStore {
  #key;
  #bytes;

  constructor(name, key, bytes) {
    super(name);
    this.#key = key;
    this.#bytes = bytes;
  }

  async get(key) {
    return key === this.#key ? this.#bytes : super.get(key);
  }
}

/** A copy of a store, in which something is changed. */
export async function changed(name, change) {
  const folder = await mkdtemp(`${tmpdir()}/bf16codecs-`);
  await cp(`${CASES}/${name}`, `${folder}/store.zarr`, { recursive: true });
  await change(`${folder}/store.zarr`);
  const store = new CountingStore("");
  store.folder = `${folder}/store.zarr`;
  return { store, remove: () => rm(folder, { recursive: true }) };
}

/** What an error wraps. */
export const cause = (error) => (error.cause instanceof Error ? cause(error.cause) : error);

/** Whether an error, or what it wraps, is of a name and says something. */
export const fails = (name, pattern) => (error) => {
  const { name: found, message } = cause(error);
  assert.equal(found, name, message);
  assert.match(message, pattern);
  return true;
};

/** The bytes of a document. */
export const encoded = (value) => new TextEncoder().encode(JSON.stringify(value));

/** A store in memory that has an array "a" of format 3, of one chunk, and has no ranges. */
export function storeOf({ shape, data_type, codecs, chunk, ...others }) {
  const meta = {
    zarr_format: 3, node_type: "array", shape, data_type, codecs, fill_value: 0, attributes: {},
    chunk_grid: { name: "regular", configuration: { chunk_shape: shape } },
    chunk_key_encoding: { name: "default", configuration: { separator: "." } },
    ...others,
  };
  const store = new Map([["/a/zarr.json", encoded(meta)]]);
  if (chunk !== undefined) store.set(`/a/${["c", ...shape.map(() => 0)].join(".")}`, chunk);
  return store;
}

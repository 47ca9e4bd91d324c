// Frames and stores, sound and damaged ones, give in WebAssembly what they give in Python: the same
// bytes, or an error of the same class.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test } from "node:test";
import * as zarr from "zarrita";
import { PREFIX_SIZE } from "../src/core.js";
import { CodecError, openModel, registerCodecs } from "../src/index.js";
import { bothCores, bytesOf, CountingStore, jsonOf } from "./support.js";

function changed(frame, { flip, cut, more = 0 }) {
  if (flip !== undefined) {
    const copy = frame.slice();
    copy[flip[0]] ^= flip[1];
    return copy;
  }
  if (cut !== undefined) return frame.slice(0, cut);
  const longer = new Uint8Array(frame.length + more);
  longer.set(frame);
  return longer;
}

async function verdictOf(decode) {
  try {
    const raw = await decode();
    return { sha256: createHash("sha256").update(raw).digest("hex"), size: raw.length };
  } catch (error) {
    // zarrita wraps what a codec throws.
    const cause = error.cause ?? error;
    assert(cause instanceof CodecError, error);
    return { error: cause.name, message: cause.message };
  }
}

/** A store of which one file is damaged. */
class DamagedStore extends CountingStore {
  #file;
  #change;

  constructor(name, file, change) {
    super(name);
    this.#file = file;
    this.#change = change;
  }

  async get(key) {
    const bytes = await super.get(key);
    return key === this.#file ? changed(bytes, this.#change) : bytes;
  }
}

/** The frame by runs of its blocks, each alone; null for what can only be decoded whole. */
function byBlocks(core, bytes) {
  const headSize = core.headSize(bytes.subarray(0, PREFIX_SIZE));
  const frame = core.open(bytes.subarray(0, headSize));
  try {
    const { blocks, rawSize, needsBase } = frame.info;
    if (blocks === 0 || needsBase) return null;
    const out = new Uint8Array(rawSize);
    for (let number = 0; number < blocks; ++number) {
      const { offset, size, rawOffset, rawSize: length, parent } = frame.block(number);
      let base;
      if (parent >= 0) {
        const { rawOffset: at } = frame.block(parent);
        base = out.subarray(at, at + length);
      }
      out.set(frame.decode(bytes.subarray(offset, offset + size), number, number + 1, base), rawOffset);
    }
    return out;
  } finally {
    frame.close();
  }
}

const GROWING = 16;

for (const core of await bothCores()) {
  test(`frames, ${core.isa}`, async () => {
    const verdicts = await jsonOf("frames.json"), all = await bytesOf("frames.bin");
    const part = (place) => place && all.subarray(place[0], place[0] + place[1]);
    assert(verdicts.length > 1000);
    for (const { codec, name, bytes: place, base, ...expected } of verdicts) {
      const bytes = part(place);
      const decode = () =>
        codec === "rle"
          ? core.decodeRunLengths(bytes)
          : core.decode(bytes, { base: part(base) ?? undefined });
      const found = await verdictOf(decode);
      if (expected.error !== undefined) {
        // Python had memory for it, and then found it damaged.
        if (found.error === "MemoryError") continue;
        // Python tells how a base is given; and its libzstd is another release.
        const differs = /give it as|Zstandard/;
        if (differs.test(expected.message) || differs.test(found.message)) {
          expected.message = found.message;
        }
      }
      assert.deepEqual(found, expected, name);
      if (expected.error === undefined && codec === "frame" && bytes[5] !== GROWING) {
        const parts = byBlocks(core, bytes);
        if (parts !== null) assert.deepEqual(parts, core.decode(bytes), name);
      }
    }
  });

  test(`stores, ${core.isa}`, async () => {
    registerCodecs(zarr.registry, core);
    const verdicts = await jsonOf("damaged.json");
    assert(verdicts.length > 100);
    for (const { store, tensor, file, change, ...expected } of verdicts) {
      const model = await openModel(new DamagedStore(store, file, change), core);
      const read = async () => {
        const found = await (await model.tensor(tensor)).get();
        if (found.data === undefined) return new Uint8Array(Float32Array.of(found).buffer);
        return new Uint8Array(found.data.buffer, found.data.byteOffset, found.data.byteLength);
      };
      const { message, ...found } = await verdictOf(read);
      const name = `${store}${file} ${JSON.stringify(change)}: ${message}`;
      delete expected.message; // which names the place by other words
      assert.deepEqual(found, expected, name);
    }
  });
}

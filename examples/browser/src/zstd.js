// Zstandard for frames of codec "zstd", whose decoder the native core takes from whoever uses it:
// libzstd, since another might take damaged bytes for sound ones.

import { ZSTDDecoder } from "zstddec";

/** @returns {Promise<import("./core.js").ZstdDecompress>} */
export async function loadZstd() {
  const decoder = new ZSTDDecoder();
  await decoder.init();
  // Of a damaged frame, it gives nothing, which is another size than was asked for.
  return (payload, size) => decoder.decode(payload, size);
}

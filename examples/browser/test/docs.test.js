// The code of docs/howto/browser.md runs: "https://host" is a server of the samples.

import assert from "node:assert/strict";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { fileURLToPath, pathToFileURL } from "node:url";
import { test } from "node:test";
import { serve } from "../tools/serve.js";

const PAGE = new URL("../../../docs/howto/browser.md", import.meta.url);
const HERE = fileURLToPath(new URL("..", import.meta.url));

test("code blocks of the page", async () => {
  const text = await readFile(PAGE, "utf8");
  const blocks = [...text.matchAll(/^```js\n(.*?)^```/gms)].map(([, code]) => code);
  assert.equal(blocks.length, 2);
  const server = await serve(`${HERE}dist/samples`);
  // In the package, so that it can be imported by its name.
  const folder = await mkdtemp(`${HERE}test/.docs-`);
  try {
    for (const [i, code] of blocks.entries()) {
      const path = `${folder}/${i}.mjs`;
      const local = code.replaceAll("https://host/model.zarr", `${server.address}/demo.zarr`);
      await writeFile(path, `${local}\nexport const found = data;\n`);
      const { found } = await import(pathToFileURL(path).href);
      assert(found instanceof Uint16Array && found.length === [960, 384][i], `block ${i}`);
    }
  } finally {
    await rm(folder, { recursive: true });
    await server.close();
  }
});

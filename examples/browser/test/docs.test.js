// The code of docs/howto/browser.md runs as a stranger's does, who has installed the package in a folder
// of their own; "https://host" is a server of the samples.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { fileURLToPath, pathToFileURL } from "node:url";
import { after, before, test } from "node:test";
import { serve } from "../tools/serve.js";

const PAGE = new URL("../../../docs/howto/browser.md", import.meta.url);
const HERE = fileURLToPath(new URL("..", import.meta.url));

let project;
before(async () => {
  project = await mkdtemp(`${tmpdir()}/bf16codecs-`);
  const modules = `${project}/node_modules`;
  await mkdir(`${modules}/bf16codecs`, { recursive: true });
  // What npm takes of the folder; and what it would fetch.
  const said = execFileSync("npm", ["pack", "--json", "--pack-destination", project], {
    cwd: HERE, stdio: ["ignore", "pipe", "ignore"],
  });
  const [{ filename }] = JSON.parse(said);
  const into = ["-C", `${modules}/bf16codecs`, "--strip-components=1"];
  execFileSync("tar", ["-xzf", `${project}/${filename}`, ...into]);
  for (const name of ["zarrita", "zstddec"]) {
    await symlink(`${HERE}node_modules/${name}`, `${modules}/${name}`);
  }
});
after(() => rm(project, { recursive: true }));

test("the package has what it needs, and nothing else", async () => {
  const files = await readdir(`${project}/node_modules/bf16codecs`, { recursive: true });
  assert(files.includes("dist/bf16codecs.wasm") && files.includes("dist/bf16codecs-scalar.wasm"));
  assert(!files.some((file) => /page|test|samples|wasm\//.test(file)), files.join());
});

test("code blocks of the page", async () => {
  const text = await readFile(PAGE, "utf8");
  const blocks = [...text.matchAll(/^```js\n(.*?)^```/gms)].map(([, code]) => code);
  assert.equal(blocks.length, 2);
  const server = await serve(`${HERE}dist/samples`);
  try {
    for (const [i, code] of blocks.entries()) {
      const path = `${project}/${i}.mjs`;
      const local = code.replaceAll("https://host/model.zarr", `${server.address}/demo.zarr`);
      await writeFile(path, `${local}\nexport const found = values;\n`);
      const { found } = await import(pathToFileURL(path).href);
      assert(found instanceof Float32Array && found.length === [960, 384][i], `block ${i}`);
      assert(found.every((value) => Math.abs(value) < 1), `block ${i}`);
    }
  } finally {
    await server.close();
  }
});

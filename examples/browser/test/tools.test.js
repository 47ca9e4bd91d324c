// The tools: what is wrong is said in a sentence, and nothing outside of a folder is served.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer, request } from "node:http";
import { tmpdir } from "node:os";
import { fileURLToPath } from "node:url";
import { test } from "node:test";
import { serve } from "../tools/serve.js";

const tool = (name) => fileURLToPath(new URL(`../tools/${name}`, import.meta.url));

/** What a tool writes, and its exit status. */
const runTool = (name, args, env = {}) =>
  new Promise((resolve) => {
    const options = { env: { ...process.env, ...env } };
    execFile(process.execPath, [tool(name), ...args], options, (error, out, said) =>
      resolve({ status: error?.code ?? 0, out, said }));
  });

/** The reply to a path that is sent as it is. */
const replyTo = (address, path, headers = {}) =>
  new Promise((resolve, reject) => {
    const { hostname, port } = new URL(address);
    const sent = request({ hostname, port, path, headers }, async (reply) => {
      const parts = [];
      for await (const part of reply) parts.push(part);
      resolve({ status: reply.statusCode, text: Buffer.concat(parts).toString() });
    });
    sent.on("error", reject).end();
  });

test("a folder is served, and nothing else", async () => {
  const root = await mkdtemp(`${tmpdir()}/bf16codecs-`);
  await mkdir(`${root}/inner/folder`, { recursive: true });
  await writeFile(`${root}/secret`, "secret");
  await writeFile(`${root}/inner/file`, "0123456789");
  await writeFile(`${root}/inner/index.html`, "index");
  const { address, close } = await serve(`${root}/inner`);
  try {
    const cases = [
      ["/file", 200, "0123456789"], ["/", 200, "index"], ["/folder", 404, ""], ["/nothing", 404, ""],
      ["/%", 400, ""], ["/%ff", 400, ""], ["/a%00b", 404, ""], ["//", 400, ""],
      ["/../secret", 404, ""], ["/..%2fsecret", 404, ""], ["/%2e%2e/secret", 404, ""],
      ["/folder/..%2f..%2fsecret", 404, ""], ["/..%5csecret", 404, ""], ["/%2fsecret", 404, ""],
      [`/${root}/secret`, 404, ""],
    ];
    for (const [path, status, text] of cases) {
      assert.deepEqual(await replyTo(address, path), { status, text }, path);
    }
    const ranges = [
      ["bytes=2-4", 206, "234"], ["bytes=-3", 206, "789"], ["bytes=8-", 206, "89"], ["bytes=10-", 416, ""],
    ];
    for (const [range, status, text] of ranges) {
      assert.deepEqual(await replyTo(address, "/file", { range }), { status, text }, range);
    }
  } finally {
    await close();
    await rm(root, { recursive: true });
  }
});

test("the server says why it does not start", async () => {
  const taken = createServer();
  await new Promise((resolve) => taken.listen(0, "127.0.0.1", resolve));
  const { port } = taken.address();
  const cases = [
    [[".", String(port)], new RegExp(`^port ${port} is taken: name another one.*\n$`)],
    [["/nowhere/at/all"], /^there is no folder \/nowhere\/at\/all: npm run build makes dist\n$/],
    [[".", "lots"], /^"lots" is no port: name a number up to 65535\n$/],
  ];
  for (const [args, expected] of cases) {
    const { status, said } = await runTool("serve.js", args);
    assert.match(said, expected);
    assert.equal(status, 1);
  }
  await new Promise((resolve) => taken.close(resolve));
});

test("the build says what is missing, before it begins", async () => {
  const empty = await mkdtemp(`${tmpdir()}/bf16codecs-`);
  const env = { PATH: empty, PYTHON: "no-python" };
  const { status, said, out } = await runTool("build.js", [], env);
  assert.equal(status, 1);
  assert.equal(out, "");
  assert.match(said, /^The build needs what is not there:\n/);
  const zig = /Zig, .*: pip install ziglang/;
  for (const advice of [/CMake: pip install cmake/, /Ninja: pip install ninja/, zig, /"no-python"/]) {
    assert.match(said, advice);
  }
  const unknown = await runTool("build.js", ["pages"], env);
  assert.match(unknown.said, /^there is no pages: name some of modules, page, samples, kernels\n$/);
  await rm(empty, { recursive: true });
});

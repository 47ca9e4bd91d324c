// A static file server, with ranges, for the tests and to look at the page:
//
//   node tools/serve.js FOLDER [PORT]

import { createReadStream } from "node:fs";
import { stat } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join, normalize, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const TYPES = {
  ".css": "text/css", ".html": "text/html; charset=utf-8", ".js": "text/javascript",
  ".json": "application/json", ".wasm": "application/wasm",
};

/** The bytes that a request's Range header asks for; undefined if it has none, null if there are none. */
function rangeOf(header, size) {
  const [, from, to] = /^bytes=(\d*)-(\d*)$/.exec(header ?? "") ?? [];
  if (from === undefined || from + to === "") return undefined;
  const start = from === "" ? Math.max(0, size - Number(to)) : Number(from);
  const end = from === "" || to === "" ? size - 1 : Math.min(Number(to), size - 1);
  return start <= end ? { start, end } : null;
}

/** The file that an address means, which is in the folder; null if it means none. */
function fileOf(folder, url) {
  try {
    const { pathname } = new URL(url, "http://localhost");
    const path = join(folder, normalize(decodeURIComponent(pathname)));
    return pathname.endsWith("/") ? join(path, "index.html") : path;
  } catch {
    return null; // such as "/%"
  }
}

/**
 * Serve a folder on this machine.
 *
 * @param {string} folder
 * @param {object} [options]
 * @param {number} [options.port]
 * @param {boolean} [options.ranges] Whether ranges are known.
 * @param {boolean} [options.cors] Whether pages of other sites may read.
 */
export async function serve(folder, { port = 0, ranges = true, cors = true } = {}) {
  const server = createServer(async (request, response) => {
    const file = fileOf(folder, request.url);
    const found = file && (await stat(file).catch(() => null));
    const headers = cors
      ? { "Access-Control-Allow-Origin": "*", "Access-Control-Allow-Headers": "Range" }
      : {};
    if (request.method === "OPTIONS") return response.writeHead(204, headers).end();
    if (file === null) return response.writeHead(400, headers).end();
    if (!found?.isFile()) return response.writeHead(404, headers).end();
    headers["Content-Type"] = TYPES[extname(file)] ?? "application/octet-stream";
    const range = ranges ? rangeOf(request.headers.range, found.size) : undefined;
    if (range === null) return response.writeHead(416, headers).end();
    const { start, end } = range ?? { start: 0, end: found.size - 1 };
    headers["Content-Length"] = end - start + 1;
    if (range) headers["Content-Range"] = `bytes ${start}-${end}/${found.size}`;
    response.writeHead(range ? 206 : 200, headers);
    if (request.method === "HEAD" || found.size === 0) return response.end();
    // What cannot be read ends the reply, which is too short then.
    const content = createReadStream(file, { start, end }).on("error", () => response.destroy());
    return content.pipe(response);
  });
  await new Promise((resolve, reject) => {
    server.once("error", reject).listen(port, "127.0.0.1", resolve);
  });
  return {
    address: `http://127.0.0.1:${server.address().port}`,
    close: () => new Promise((resolve) => server.close(resolve).closeAllConnections()),
  };
}

/** What goes wrong at the start, in plain words. */
function whyNot(error, folder, port) {
  if (error.code === "EADDRINUSE") {
    return `port ${port} is taken: name another one, as in node tools/serve.js ${folder ?? "."} 8001`;
  }
  if (error.code === "EACCES") return `port ${port} is not for everyone: name one from 1024 on`;
  if (error.code === "ERR_SOCKET_BAD_PORT") return `"${port}" is no port: name a number up to 65535`;
  return error.message;
}

async function main(folder = ".", port = "8000") {
  const isFolder = await stat(folder).then((found) => found.isDirectory(), () => false);
  if (!isFolder) throw new Error(`there is no folder ${resolve(folder)}: npm run build makes dist`);
  const { address } = await serve(folder, { port: Number(port) });
  console.log(`${folder} is at ${address}/`);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [folder, port = "8000"] = process.argv.slice(2);
  await main(folder, port).catch((error) => {
    console.error(whyNot(error, folder, port));
    process.exitCode = 1;
  });
}

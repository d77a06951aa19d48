// Records the queries of the Grafana dashboard into docs/images/src/dashboard.json while a soak runs: a Prometheus server
// scrapes the replicas that the soak names in target/torture/targets.json, until the soak deletes this file or you press
// Ctrl-C.
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { dashboard, images, root } from "./files.mjs";

const job = "quartermaster";
const scrapeInterval = 5; // seconds
const maxPoints = 120;
const targets = join(root, "target/torture/targets.json");

async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  return port;
}

/** Returns the result of a query. `address` is that of the API. */
async function query(address, path, parameters) {
  const response = await fetch(`${address}/${path}?${new URLSearchParams(parameters)}`);
  const { data, error } = await response.json();
  if (error) throw new Error(`${parameters.query}: ${error}`);
  return data.result;
}

/** Returns the first and the last second in which a replica was up. */
async function period(address) {
  const seconds = async (which) => {
    const [found] = await query(address, "query", {
      query: `${which}(${which}_over_time(timestamp(up{job="${job}"} == 1)[1d:${scrapeInterval}s]))`,
    });
    if (!found) throw new Error("Prometheus could not scrape any replica");
    return Number(found.value[1]);
  };
  return [await seconds("min"), await seconds("max")];
}

/** Returns four significant digits of a sample, or null for a quantile of nothing. */
function rounded(sample) {
  const value = Number(sample);
  return Number.isFinite(value) ? Number(value.toPrecision(4)) : null;
}

/** Returns every series of every panel. */
async function record(address) {
  const [start, end] = await period(address);
  const step = Math.max(1, Math.ceil((end - start) / (maxPoints - 1)));
  const points = Math.floor((end - start) / step) + 1;
  const rateInterval = Math.max(4 * scrapeInterval, step + scrapeInterval);
  const series = [];
  for (const panel of dashboard().panels) {
    for (const { refId, expr } of panel.targets ?? []) {
      const filled = expr.replaceAll("$job", job).replaceAll("$__rate_interval", `${rateInterval}s`);
      const found = await query(address, "query_range", { query: filled, start, end, step });
      const recorded = found.map(({ metric: { __name__, job, ...labels }, values: samples }) => {
        const values = new Array(points).fill(null);
        for (const [at, sample] of samples) values[Math.round((at - start) / step)] = rounded(sample);
        return JSON.stringify({ panel: panel.id, target: refId, labels, values });
      });
      series.push(...recorded.sort());
    }
  }
  return `{"step":${step},"points":${points},"series":[\n${series.join(",\n")}\n]}\n`;
}

const prometheus = execFileSync("bash", [join(root, "hack/tools/build.sh"), "prometheus"], {
  encoding: "utf8",
  stdio: ["ignore", "pipe", "inherit"],
}).trim();

// The file of an earlier soak names ports that other programs may have by now. A running soak soon writes the file again.
rmSync(targets, { force: true });
mkdirSync(dirname(targets), { recursive: true });

console.log("Waiting for a soak. Run: make torture TORTURE=\"--soak 3600\"");
while (!existsSync(targets)) await sleep(1000);

let interrupted = false;
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => (interrupted = true));

const folder = mkdtempSync(join(tmpdir(), "quartermaster-record-"));
const config = {
  global: { scrape_interval: `${scrapeInterval}s` },
  scrape_configs: [{ job_name: job, file_sd_configs: [{ files: [targets], refresh_interval: `${scrapeInterval}s` }] }],
};
writeFileSync(join(folder, "config.yaml"), JSON.stringify(config)); // JSON is YAML
const listen = `127.0.0.1:${await freePort()}`;
// A process group of its own, so that Ctrl-C does not end Prometheus before the queries.
const server = spawn(
  prometheus,
  [
    `--config.file=${join(folder, "config.yaml")}`,
    `--storage.tsdb.path=${join(folder, "data")}`,
    `--web.listen-address=${listen}`,
    "--log.level=error",
  ],
  { detached: true, stdio: ["ignore", "inherit", "inherit"] },
);
const exited = once(server, "exit");
try {
  console.log("Recording until the soak ends. Ctrl-C ends the recording earlier, and keeps it.");
  while (!interrupted && existsSync(targets) && server.exitCode === null) await sleep(1000);
  writeFileSync(join(images, "src/dashboard.json"), await record(`http://${listen}/api/v1`));
  console.log("docs/images/src/dashboard.json");
} finally {
  server.kill();
  await exited;
  rmSync(folder, { recursive: true });
}

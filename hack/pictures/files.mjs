// Folders of this repository.
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { join } from "node:path";

export const root = fileURLToPath(new URL("../..", import.meta.url));
export const images = join(root, "docs/images");

/** Returns the Grafana dashboard. */
export const dashboard = () => JSON.parse(readFileSync(join(root, "config/grafana/quartermaster.json"), "utf8"));

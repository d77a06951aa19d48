// Debian's Chromium, driven by puppeteer-core, which downloads no browser of its own.
import { existsSync } from "node:fs";
import puppeteer from "puppeteer-core";

const program = process.env.CHROMIUM ?? "/usr/bin/chromium";

export async function launch() {
  if (!existsSync(program)) {
    throw new Error(`${program}: not found; install Chromium (apt-get install chromium), or set CHROMIUM to its path`);
  }
  // Chromium refuses to run as root with its sandbox, and it reads only files of this repository here.
  const args = process.getuid() === 0 ? ["--no-sandbox"] : [];
  return puppeteer.launch({ executablePath: program, args: [...args, "--font-render-hinting=none"] });
}

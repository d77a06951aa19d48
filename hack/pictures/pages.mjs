// Builds the book, opens each page in a browser, on a desk's and on a phone's width, in a light and in a dark theme, and
// takes a screenshot of it into target/pages. Fails if a page scrolls sideways, an image is not shown, or anything would be
// loaded from the internet.
import { execFileSync } from "node:child_process";
import { mkdirSync, readdirSync, rmSync } from "node:fs";
import { join, relative } from "node:path";
import { pathToFileURL } from "node:url";
import { launch } from "./browser.mjs";
import { root } from "./files.mjs";

const book = join(root, "target/pages/book");
const shots = join(root, "target/pages");
const widths = [1280, 390];
const themes = ["light", "navy"];

rmSync(shots, { recursive: true, force: true });
mkdirSync(shots, { recursive: true });
const mdbook = execFileSync("bash", [join(root, "hack/tools/build.sh"), "mdbook"], { encoding: "utf8" }).trim();
execFileSync(mdbook, ["build", root, "-d", book], { stdio: ["ignore", "ignore", "inherit"] });

const generated = ["print.html", "toc.html", "404.html"];
const pages = readdirSync(book, { recursive: true })
  .filter((it) => it.endsWith(".html") && !generated.includes(it))
  .sort();
const problems = new Set();

const browser = await launch();
try {
  for (const theme of themes) {
    for (const width of widths) {
      const page = await browser.newPage();
      await page.setViewport({ width, height: 900 });
      await page.evaluateOnNewDocument((theme) => {
        localStorage.setItem("mdbook-theme", theme);
        localStorage.setItem("mdbook-sidebar", "hidden");
      }, theme);
      await page.emulateMediaFeatures([{ name: "prefers-reduced-motion", value: "reduce" }]); // a picture that plays shows its end
      let path;
      page.on("request", (request) => {
        if (/^https?:/.test(request.url())) problems.add(`${path}: loads ${request.url()}`);
      });
      for (path of pages) {
        await page.goto(pathToFileURL(join(book, path)).href, { waitUntil: "load" });
        const seen = await page.evaluate(() => ({
          // The book scrolls its content, not the document.
          excess: Math.max(
            ...[document.documentElement, ...document.querySelectorAll(".content, main")].map((it) => it.scrollWidth - it.clientWidth),
          ),
          broken: [...document.images].filter((it) => it.naturalWidth === 0).map((it) => it.getAttribute("src")),
          theme: document.documentElement.className,
        }));
        if (!seen.theme.split(" ").includes(theme)) problems.add(`${path}: has not the theme ${theme}`);
        if (seen.excess > 0) problems.add(`${path}: scrolls sideways by ${seen.excess} px at a width of ${width} px`);
        for (const image of seen.broken) problems.add(`${path}: the image ${image} is not shown`);
        const name = path.replaceAll("/", "-").replace(/\.html$/, "");
        await page.screenshot({ path: join(shots, `${name}-${width}-${theme}.png`), fullPage: true });
      }
      await page.close();
    }
  }
} finally {
  await browser.close();
}

console.log(`${pages.length} pages at ${widths.join(" and ")} px, ${themes.join(" and ")}: ${relative(root, shots)}`);
for (const problem of [...problems].sort()) console.error(problem);
process.exitCode = problems.size > 0 ? 1 : 0;

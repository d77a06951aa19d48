// Draws docs/images/src/NAME.mmd into docs/images/NAME.svg.
//
// The pictures stand on white and on black pages: the background is transparent, each box and each label has a fill and a
// text colour of its own, and lines are grey. Labels are SVG text, because HTML inside an <img> is not drawn everywhere.
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { basename, join } from "node:path";
import { launch } from "./browser.mjs";
import { images } from "./files.mjs";

const line = "#7d8590";
const text = "#1f2328";
const fills = {
  default: ["#dbeafe", "#3b82f6"],
  store: ["#fef3c7", "#d97706"],
  outside: ["#ede9fe", "#8b5cf6"],
  good: ["#dcfce7", "#16a34a"],
  warn: ["#ffedd5", "#ea580c"],
  bad: ["#fee2e2", "#dc2626"],
  neutral: ["#f3f4f6", "#6b7280"],
};
const classes = Object.entries(fills)
  .map(([name, [fill, stroke]]) => `classDef ${name} fill:${fill},stroke:${stroke},color:${text}`)
  .join("\n");

const config = {
  startOnLoad: false,
  deterministicIds: true,
  handDrawnSeed: 1, // of shapes that are drawn by curves
  theme: "base",
  htmlLabels: false,
  fontFamily: "sans-serif",
  flowchart: { htmlLabels: false, curve: "basis", padding: 12, nodeSpacing: 32, rankSpacing: 36, wrappingWidth: 600, subGraphTitleMargin: { top: 6, bottom: 10 } },
  themeVariables: { fontFamily: "sans-serif", fontSize: "15px" },
};

/** In place of Mermaid's own style sheet, most of which concerns shapes that no picture has. */
const styles = `
  text { font: 15px sans-serif; fill: ${text} }
  .node text { text-anchor: middle }
  .flowchart-link { fill: none; stroke: ${line}; stroke-width: 1.5px }
  .edge-pattern-dotted { stroke-dasharray: 3 }
  .marker { fill: ${line}; stroke: ${line} }
  .cluster rect { fill: #f6f8fa; stroke: #8b949e }
  .node rect, .cluster rect, .background { rx: 4px }
  .edgeLabel .background { fill: #e5e7eb }
`;

/** Runs in the browser: draws a diagram, and leaves out what no picture needs. */
async function draw(name, source, styles) {
  const document = new DOMParser().parseFromString((await mermaid.render(name, source)).svg, "image/svg+xml");
  const svg = document.documentElement;
  const all = (selector) => [...svg.querySelectorAll(selector)];

  all("style").forEach((it, index) => (index === 0 ? (it.textContent = styles) : it.remove()));
  all("filter, linearGradient, .edge-thickness-invisible").forEach((it) => it.remove());
  all("marker").filter((it) => !svg.innerHTML.includes(`url(#${it.id})`)).forEach((it) => it.remove());
  // Words are spans of their own: joins those of one weight.
  all("tspan.row").forEach((row) => {
    for (const span of [...row.children]) {
      const before = span.previousElementSibling;
      if (before?.getAttribute("font-weight") === span.getAttribute("font-weight")) {
        before.textContent += span.textContent;
        span.remove();
      }
    }
  });
  all("tspan").forEach((it) => {
    ["class", "font-style"].forEach((name) => it.removeAttribute(name));
    if (it.getAttribute("font-weight") === "normal") it.removeAttribute("font-weight");
  });
  all(".edgeLabel").filter((it) => it.textContent === "").forEach((it) => it.remove());
  all("rect, defs").filter((it) => !it.attributes.length && !it.children.length).forEach((it) => it.remove());
  all("*").forEach((it) => {
    for (const { name, value } of [...it.attributes]) {
      if (name.startsWith("data-") || value === "" || (name === "id" && !/title|desc/.test(value) && it.tagName !== "marker")) {
        it.removeAttribute(name);
      } else if (["d", "x", "y", "width", "height", "transform", "points"].includes(name)) {
        it.setAttribute(name, value.replace(/-?\d+\.\d+(?!\d|e?m\b)/g, (number) => String(Number(Number(number).toFixed(1)))));
      }
    }
  });
  // At the left, where no line enters from above.
  all(".cluster").forEach((it) => {
    const { x, y } = it.querySelector("rect");
    it.querySelector(".cluster-label").setAttribute("transform", `translate(${x.baseVal.value + 10}, ${y.baseVal.value + 6})`);
  });
  // An <img> takes its size from width and height.
  const box = svg.viewBox.baseVal;
  svg.setAttribute("width", Math.ceil(box.width));
  svg.setAttribute("height", Math.ceil(box.height));
  svg.removeAttribute("style");
  return new XMLSerializer().serializeToString(svg).replaceAll(" !important", "");
}

const sources = join(images, "src");
const browser = await launch();
try {
  const page = await browser.newPage();
  await page.setContent("<!doctype html><body></body>");
  await page.addScriptTag({ path: createRequire(import.meta.url).resolve("mermaid/dist/mermaid.min.js") });
  await page.evaluate((config) => mermaid.initialize(config), config);
  for (const file of readdirSync(sources).filter((it) => it.endsWith(".mmd")).sort()) {
    const name = basename(file, ".mmd");
    const source = readFileSync(join(sources, file), "utf8");
    const svg = await page
      .evaluate(draw, name, `${source}\n${classes}\n`, styles)
      .catch((error) => {
        throw new Error(`docs/images/src/${file}: ${error.message}`);
      });
    if (svg.includes("foreignObject")) {
      throw new Error(`docs/images/src/${file}: a label became HTML, which an <img> does not draw everywhere`);
    }
    writeFileSync(join(images, `${name}.svg`), `${svg}\n`);
    console.log(`docs/images/${name}.svg`);
  }
} finally {
  await browser.close();
}

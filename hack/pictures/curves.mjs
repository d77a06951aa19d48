// Draws docs/images/src/soak.csv into docs/images/soak.svg: the samples of a soak. Its columns are seconds, replica, memory_kib,
// files and tasks.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { images } from "./files.mjs";
import { text, ticks, timeAxis, valueAxis } from "./plot.mjs";

const colours = ["#3b82f6", "#ea580c"];
const grey = "#7d8590";
const [width, height, left, gap] = [700, 120, 48, 34];
const panels = [
  { title: "Anonymous memory, MiB", value: (row) => row.memory_kib / 1024 },
  { title: "File descriptors", value: (row) => row.files },
  { title: "Tasks", value: (row) => row.tasks },
];

function parse(file) {
  const [head, ...lines] = readFileSync(file, "utf8").trim().split("\n");
  const names = head.split(",");
  return lines.map((line) => Object.fromEntries(line.split(",").map((cell, index) => [names[index], Number(cell)])));
}

function draw(rows) {
  const last = Math.max(...rows.map((row) => row.seconds));
  const box = (index) => {
    const top = gap + index * (height + gap);
    return { left, right: width - 10, top, bottom: top + height };
  };
  const { x, labels } = timeAxis(box(panels.length - 1), last);
  let body = "";
  panels.forEach(({ title, value }, index) => {
    const { y, grid } = valueAxis(box(index), ticks(Math.max(...rows.map(value))));
    body += `<text x="${left}" y="${box(index).top - 10}" class="title">${title}</text>\n${grid}`;
    colours.forEach((colour, replica) => {
      const points = rows.filter((row) => row.replica === replica).map((row) => `${x(row.seconds)},${y(value(row))}`);
      body += `<polyline points="${points.join(" ")}" stroke="${colour}"/>\n`;
    });
  });
  const legend = colours.map((colour, replica) => `<tspan fill="${colour}">replica ${replica}</tspan>`).join("  ");
  body += labels + text(width - 10, gap - 10, legend, "end");
  const full = box(panels.length - 1).bottom + 28;
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${full}" viewBox="0 0 ${width} ${full}" role="img" aria-labelledby="soak-title">
<title id="soak-title">${panels.map(({ title }) => title).join("; ")}: of two replicas over ${Math.round(last / 60)} minutes</title>
<style>
  text { font: 13px sans-serif; fill: ${grey} }
  .title { font-weight: bold }
  .grid { stroke: ${grey}; stroke-opacity: 0.3 }
  polyline { fill: none; stroke-width: 1.5px }
</style>
${body}</svg>
`;
}

writeFileSync(join(images, "soak.svg"), draw(parse(join(images, "src/soak.csv"))));
console.log("docs/images/soak.svg");

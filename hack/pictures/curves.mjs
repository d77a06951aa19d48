// Draws docs/images/src/soak.csv into docs/images/soak.svg: the samples of a soak. Its columns are seconds, replica, memory_kib,
// files and tasks.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { images } from "./files.mjs";

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

/** Returns the smallest of 1, 2, 5, 10, 20, 50 ... that divides the values into at most four parts. */
function step(most) {
  const power = 10 ** Math.floor(Math.log10(most / 4));
  return [1, 2, 5, 10].map((it) => it * power).find((it) => most / it <= 4);
}

function draw(rows) {
  const last = Math.max(...rows.map((row) => row.seconds));
  const x = (seconds) => (left + (seconds / last) * (width - left - 10)).toFixed(1);
  const label = (x, y, text, anchor) => `<text x="${x}" y="${y}" text-anchor="${anchor}">${text}</text>\n`;
  let body = "";
  panels.forEach(({ title, value }, index) => {
    const top = gap + index * (height + gap);
    const most = Math.max(...rows.map(value));
    const by = step(most);
    const end = Math.ceil(most / by) * by;
    const y = (at) => (top + height - (at / end) * height).toFixed(1);
    body += `<text x="${left}" y="${top - 10}" class="title">${title}</text>\n`;
    for (let at = 0; at <= end; at += by) {
      body += `<line x1="${left}" x2="${width - 10}" y1="${y(at)}" y2="${y(at)}" class="grid"/>\n`;
      body += label(left - 6, Number(y(at)) + 4, at, "end");
    }
    colours.forEach((colour, replica) => {
      const points = rows.filter((row) => row.replica === replica).map((row) => `${x(row.seconds)},${y(value(row))}`);
      body += `<polyline points="${points.join(" ")}" stroke="${colour}"/>\n`;
    });
  });
  const bottom = gap + panels.length * (height + gap) - gap;
  const minutes = step(last / 60);
  for (let at = 0; at * 60 <= last; at += minutes) {
    body += label(x(at * 60), bottom + 18, `${at} min`, at === 0 ? "start" : "middle");
  }
  const legend = colours.map((colour, replica) => `<tspan fill="${colour}">replica ${replica}</tspan>`).join("  ");
  body += label(width - 10, gap - 10, legend, "end");
  const full = bottom + 28;
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

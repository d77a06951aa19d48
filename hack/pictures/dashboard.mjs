// Draws docs/images/src/dashboard.json, a recording of record.mjs, into docs/images/dashboard.svg: the panels of the Grafana
// dashboard, with Grafana's colours.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { dashboard, images } from "./files.mjs";
import { text, ticks, timeAxis, valueAxis } from "./plot.mjs";

const [width, margin, gap, head] = [1200, 8, 8, 44];
const [column, row] = [(width - 2 * margin) / 24, 34]; // one unit of gridPos
const padding = 12;
const line = 19; // height of a line of text
const legendLines = 3;
const palette =
  "#73bf69 #f2cc0c #8ab8ff #ff780a #f2495c #5794f2 #b877d9 #96d98d #ffee52 #c0d8ff #ffb357 #ff7383 #deb6f2 #37872d #e0b400".split(" ");
const named = { green: "#73bf69", orange: "#ff9830", red: "#f2495c", text: "#ccccdc" };

/** The steps of each unit, the largest first. */
const units = {
  short: [[1e6, " Mil"], [1e3, " K"], [1, ""]],
  s: [[3600, " hour"], [60, " min"], [1, " s"], [1e-3, " ms"]],
  bytes: [[2 ** 30, " GiB"], [2 ** 20, " MiB"], [2 ** 10, " KiB"], [1, " B"]],
  reqps: [[1, " req/s"]],
  ops: [[1, " ops/s"]],
  percentunit: [[0.01, "%"]],
};

function unitFor(panel, value) {
  const steps = units[panel.fieldConfig.defaults.unit];
  if (!steps) throw new Error(`panel ${panel.title}: add its unit to dashboard.mjs`);
  const [size, suffix] = steps.find(([size]) => value >= size) ?? steps.at(-1);
  return { size, suffix };
}

const escaped = (content) => content.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
const maximum = (values) => values.reduce((most, it) => Math.max(most, it ?? 0), 0);

/** Returns about how wide a text of 13 px is, in a wide font. */
function widthOf(content) {
  const narrow = content.replace(/[^ijlt fr.,:-]/g, "").length;
  const wide = content.replace(/[^A-Zmw%+]/g, "").length;
  return content.length * 8 - narrow * 3.5 + wide * 2;
}

/** Returns the names that fit into the lines below a panel, as { x, line, name, index }. The last one counts the others. */
function legend(names, space) {
  const [swatch, between] = [18, 14];
  const placed = [];
  let [x, at] = [0, 0];
  for (const [index, name] of names.entries()) {
    const fits = (content, reserved) => x + swatch + widthOf(content) + reserved <= space;
    if (at < legendLines - 1 && x > 0 && !fits(name, 0)) [x, at] = [0, at + 1];
    const ends = at === legendLines - 1;
    const reserved = ends && index < names.length - 1 ? between + widthOf("+99 more") : 0;
    if (ends && x > 0 && !fits(name, reserved)) return [...placed, { x, at, name: `+${names.length - index} more` }];
    let cut = name;
    while (!fits(cut, reserved)) cut = `${cut.slice(0, -2)}…`;
    placed.push({ x, at, index, name: cut });
    x += swatch + widthOf(cut) + between;
  }
  return placed;
}

/** Returns the lines through the values that are there. A point in the middle of equal ones is left out. */
function path(points) {
  let drawn = "";
  points.forEach(([x, y], index) => {
    const [before, after] = [points[index - 1]?.[1], points[index + 1]?.[1]];
    if (y === null) return;
    if (before === y && after === y) return;
    const starts = before === undefined || before === null;
    drawn += `${starts ? "M" : "L"}${x},${y}`;
    if (starts && (after === undefined || after === null)) drawn += "h3"; // a short dash, because a dot would be too small to see
  });
  return drawn;
}

function drawChart(panel, series, { left, right, top, bottom }) {
  const isStacked = panel.fieldConfig.defaults.custom.stacking?.mode === "normal";
  series.sort((one, other) => maximum(other.values) - maximum(one.values));
  const names = legend(series.map(({ name }) => name), right - left);
  const below = bottom - line * (names.at(-1).at + 1);

  const floors = [new Array(points).fill(0)];
  if (isStacked) for (const { values } of series) floors.push(floors.at(-1).map((floor, at) => floor + (values[at] ?? 0)));
  const tops = series.map(({ values }, index) => values.map((it, at) => (it === null ? null : it + (isStacked ? floors[index][at] : 0))));

  const most = maximum(tops.map(maximum)) || 1;
  const { size, suffix } = unitFor(panel, most);
  const marks = ticks(most / size);
  const decimals = Math.max(0, -Math.floor(Math.log10(marks[1]) + 1e-9));
  const label = (mark) => (mark === 0 ? "0" : mark.toFixed(decimals)) + suffix;
  const box = { left: left + widthOf(label(marks.at(-1))) + 6, right, top, bottom: below - 30 };
  const { x, labels } = timeAxis(box, (points - 1) * step);
  const { y, grid } = valueAxis(box, marks, label);

  const through = (values) => path(values.map((it, at) => [x(at * step), it === null ? null : y(it / size)]));
  let body = grid + labels;
  series.forEach((_, index) => {
    const colour = palette[index % palette.length];
    if (isStacked) {
      const floor = floors[index].map((it, at) => [x(at * step), y(it / size)]).reverse();
      const area = through(floors[index + 1]) + path(floor).replace("M", "L");
      if (maximum(series[index].values) > 0) body += `<path d="${area}Z" style="fill: ${colour}" class="area"/>\n`;
    }
    body += `<path d="${through(tops[index])}" stroke="${colour}"/>\n`;
  });
  for (const { x, at, index, name } of names) {
    const y = below + line * at + 13;
    if (index === undefined) {
      body += text(left + x, y, name, "start");
    } else {
      body += `<path d="M${left + x},${y - 4}h12" stroke="${palette[index % palette.length]}" class="swatch"/>\n`;
      body += text(left + x + 18, y, escaped(name), "start");
    }
  }
  return body;
}

function drawStat(panel, series, { left, right, top, bottom }) {
  const { thresholds, mappings } = panel.fieldConfig.defaults;
  // A name is that of the series that has the newest sample.
  const newest = ({ values }) => values.findLastIndex((it) => it !== null);
  const [shown] = series.toSorted((one, other) => newest(other) - newest(one));
  const value = shown?.values[newest(shown)];
  const colour = thresholds.steps.findLast((it) => it.value === null || value >= it.value).color;
  const { size, suffix } = unitFor(panel, value);
  let content = mappings.find(({ options }) => options.match === "null")?.options.result.text ?? "No data";
  if (shown) content = panel.options.textMode === "name" ? shown.name : Number((value / size).toPrecision(3)) + suffix;
  const [x, y] = [(left + right) / 2, (top + bottom) / 2 + 12];
  return `<text x="${x}" y="${y}" text-anchor="middle" class="stat" style="fill: ${named[colour]}">${escaped(content)}</text>\n`;
}

function drawPanel(panel) {
  const { x, y, w, h } = panel.gridPos;
  const [left, top] = [margin + x * column, head + y * row];
  if (panel.type === "row") {
    return `<path d="M${left + 6},${top + 14}l5,5l5,-5" class="chevron"/>\n<text x="${left + 26}" y="${top + 22}" class="title">${escaped(panel.title)}</text>\n`;
  }
  const frame = { left: left + gap / 2, top: top + gap / 2, width: w * column - gap, height: h * row - gap };
  const inside = {
    left: frame.left + padding,
    right: frame.left + frame.width - padding,
    top: frame.top + 40,
    bottom: frame.top + frame.height - 8,
  };
  const legends = Object.fromEntries(panel.targets.map(({ refId, legendFormat }) => [refId, legendFormat]));
  const series = recording.series
    .filter((it) => it.panel === panel.id && it.values.some((value) => value !== null))
    .map((it) => ({ values: it.values, name: legends[it.target].replace(/{{(\w+)}}/g, (_, label) => it.labels[label] ?? "") }));
  let content;
  if (panel.type === "stat") {
    content = drawStat(panel, series, inside);
  } else if (series.length > 0) {
    content = drawChart(panel, series, inside);
  } else {
    content = text((inside.left + inside.right) / 2, (inside.top + inside.bottom) / 2, "No data", "middle");
  }
  return `<rect x="${frame.left}" y="${frame.top}" width="${frame.width}" height="${frame.height}" rx="2"/>
<text x="${inside.left}" y="${frame.top + 24}" class="title">${escaped(panel.title)}</text>
${content}`;
}

const recording = JSON.parse(readFileSync(join(images, "src/dashboard.json"), "utf8"));
const { step, points } = recording;
const { title, panels } = dashboard();
const height = head + Math.max(...panels.map(({ gridPos }) => gridPos.y + gridPos.h)) * row + margin;
const minutes = Math.round(((points - 1) * step) / 60);
writeFileSync(
  join(images, "dashboard.svg"),
  `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" role="img" aria-labelledby="dashboard-title">
<title id="dashboard-title">The Grafana dashboard ${escaped(title)}, over ${minutes} minutes of a soak</title>
<style>
  text { font: 13px sans-serif; fill: #a3a4b0 }
  .title { font-weight: bold; font-size: 14px; fill: #ccccdc }
  .name { font-size: 20px; fill: #ccccdc }
  .stat { font-size: 36px; font-weight: bold }
  rect { fill: #181b1f; stroke: #2c2f36 }
  path { fill: none; stroke-width: 1.3px; stroke-linejoin: round; stroke-linecap: round }
  .area { stroke: none; fill-opacity: 0.2 }
  .swatch { stroke-width: 4px }
  .chevron { stroke: #a3a4b0; stroke-width: 2px }
  .grid { stroke: #ccccdc; stroke-opacity: 0.12 }
</style>
<rect width="${width}" height="${height}" style="fill: #111217; stroke: none"/>
<text x="${margin + 6}" y="30" class="name">${escaped(title)}</text>
${panels.map(drawPanel).join("")}</svg>
`,
);
console.log("docs/images/dashboard.svg");

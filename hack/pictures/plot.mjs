// Parts of charts over time. A box has the edges left, right, top and bottom of a plot.

export const text = (x, y, content, anchor) => `<text x="${x}" y="${y}" text-anchor="${anchor}">${content}</text>\n`;

/** Returns the smallest of 1, 2, 5, 10, 20, 50 ... that divides the values into at most this many parts. */
function step(most, parts) {
  const power = 10 ** Math.floor(Math.log10(most / parts));
  return [1, 2, 5, 10].map((it) => it * power).find((it) => most / it <= parts);
}

/** Returns the values of an axis from 0 to at least `most`. */
export function ticks(most, parts = 4) {
  const by = step(most, parts);
  return Array.from({ length: Math.ceil(most / by) + 1 }, (_, index) => index * by);
}

/** Returns the grid lines of `marks`, which `label` names, and the function from a value to its place. */
export function valueAxis({ left, right, top, bottom }, marks, label = String) {
  const y = (value) => (bottom - (value / marks.at(-1)) * (bottom - top)).toFixed(1);
  const lines = marks.map(
    (mark) =>
      `<line x1="${left}" x2="${right}" y1="${y(mark)}" y2="${y(mark)}" class="grid"/>\n` +
      text(left - 6, Number(y(mark)) + 4, label(mark), "end"),
  );
  return { y, grid: lines.join("") };
}

/** Returns the labels of an axis of `last` seconds, and the function from seconds to their place. */
export function timeAxis({ left, right, bottom }, last) {
  const x = (seconds) => (left + (seconds / last) * (right - left)).toFixed(1);
  const anchor = (at) => (at === 0 ? "start" : right - x(at * 60) < 16 ? "end" : "middle");
  const parts = Math.min(4, Math.floor((right - left) / 60));
  const shown = ticks(last / 60, parts).filter((minutes) => minutes * 60 <= last);
  return { x, labels: shown.map((at) => text(x(at * 60), bottom + 18, `${at} min`, anchor(at))).join("") };
}

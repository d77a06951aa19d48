// Draws terminals: docs/images/NAME.svg shows commands of a page and their output, as the tests run and compare them.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { images, root } from "./files.mjs";

/** Each picture: its page, and the commands in the page's `console` blocks that it shows, in this order. */
const pictures = JSON.parse(readFileSync(join(root, "hack/pictures/terminals.json"), "utf8"));

/** Longer lines are broken, between words. */
const columns = 108;
const cell = 7.8;
const row = 18;
const margin = 16;
const bar = 34;

/** Returns the command of a page: its output, the messages that arrive then, each with its chat, and all of it as text. */
function command(page, text) {
  const blocks = page.split(/^```/m).filter((_, index) => index % 2 === 1);
  const lines = blocks.filter((it) => it.startsWith("console\n")).flatMap((it) => [...it.split("\n").slice(1), "$ "]);
  const at = lines.indexOf(`$ ${text}`);
  if (at === -1) {
    throw new Error(`no console block has the command: $ ${text}`);
  }
  const length = lines.slice(at + 1).findIndex((it) => it.startsWith("$ "));
  const printed = lines.slice(at + 1, at + 1 + length);
  const output = [];
  const messages = [];
  for (const line of printed) {
    if (line.startsWith("    Telegram, chat ")) messages.push({ chat: line.trim(), lines: [] });
    else if (line.startsWith("    | ")) messages.at(-1).lines.push(line.slice(6));
    else output.push(line);
  }
  while (output.at(-1) === "") output.pop();
  if (output.length === 0) {
    throw new Error(`the page has no output of the command: $ ${text}`);
  }
  return { text, output, messages, block: [`$ ${text}`, ...printed].join("\n").trimEnd() };
}

const escape = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

/** Returns the lines of the picture that this line of output takes. */
function wrapped(line) {
  const [indent] = line.match(/^ */);
  const words = line.slice(indent.length).match(/ *[^ ]+/g) ?? [];
  const lines = [indent];
  for (const word of words) {
    if ([...lines.at(-1), ...word].length > columns) lines.push(indent + word.trimStart());
    else lines[lines.length - 1] += word;
  }
  return lines;
}

/** Returns a line of text whose columns stand in their places, whatever the font: each cell of a table by itself. */
function line(x, y, text, style) {
  let cells = "";
  for (const { 0: shown, index } of text.matchAll(/\S+(?: \S+)*/g)) {
    const at = (x + index * cell).toFixed(1);
    cells += `<text x="${at}" y="${y}" textLength="${([...shown].length * cell).toFixed(1)}" class="${style}">${escape(shown)}</text>\n`;
  }
  return cells;
}

function draw({ name, title, plays }, commands) {
  let [y, seconds, widest, body] = [bar + margin + 10, 0.5, 0, ""];
  const step = (content, pause) => {
    body += plays ? `<g style="animation-delay:${seconds.toFixed(1)}s">\n${content}</g>\n` : content;
    seconds += pause;
  };
  const rows = (lines, style) => {
    let content = "";
    for (const part of lines.flatMap(wrapped)) {
      content += line(margin, y, part, style);
      widest = Math.max(widest, [...part].length * cell);
      y += row;
    }
    return content;
  };
  for (const { text, output, messages } of commands) {
    const typed = line(margin, y, "$", "prompt") + line(margin + 2 * cell, y, text, "command");
    widest = Math.max(widest, (text.length + 2) * cell);
    y += row;
    step(typed, 1.2);
    step(rows(output, "output"), 0.8);
    for (const { chat, lines } of messages) {
      const width = 300;
      const height = (lines.length + 1) * row + 14;
      y += 2;
      let bubble = `<rect x="${margin + 32}" y="${y - 12}" width="${width}" height="${height}" rx="10" class="bubble"/>\n`;
      bubble += `<text x="${margin + 46}" y="${y + 7}" class="chat">${escape(chat)}</text>\n`;
      lines.forEach((it, index) => {
        bubble += `<text x="${margin + 46}" y="${y + 8 + (index + 1) * row}" class="message">${escape(it)}</text>\n`;
      });
      y += height + 8;
      widest = Math.max(widest, width + 48);
      step(bubble, 2);
    }
    y += row / 2;
  }
  const width = Math.ceil(widest + 2 * margin);
  const height = Math.ceil(y - row + margin - 4);
  // Without animations, on paper, and where no motion is wanted, all of it is there.
  const motion = `
  @media screen and (prefers-reduced-motion: no-preference) { g { animation: appear 0.2s both } }
  @keyframes appear { from { opacity: 0 } }`;
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" role="img" aria-labelledby="${name}-title">
<title id="${name}-title">${escape(title)}</title>
<desc>${escape(commands.map(({ block }) => block).join("\n"))}</desc>
<style>
  text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #d1d7e0 }
  .prompt { fill: #57ab5a }
  .command { fill: #ffffff; font-weight: bold }
  .name { font: 13px sans-serif; fill: #9198a1; text-anchor: middle }
  .bubble { fill: #1f4b6e }
  .chat { font: bold 13px sans-serif; fill: #79c0ff }
  .message { font: 14px sans-serif; fill: #ffffff }${plays ? motion : ""}
</style>
<rect x="0.5" y="0.5" width="${width - 1}" height="${height - 1}" rx="8" fill="#1c2128" stroke="#545d68"/>
<circle cx="18" cy="17" r="5.5" fill="#ff5f57"/><circle cx="36" cy="17" r="5.5" fill="#febc2e"/><circle cx="54" cy="17" r="5.5" fill="#28c840"/>
<text x="${width / 2}" y="22" class="name">${escape(title)}</text>
${body}</svg>
`;
}

for (const picture of pictures) {
  const page = readFileSync(join(root, picture.page), "utf8");
  try {
    writeFileSync(join(images, `${picture.name}.svg`), draw(picture, picture.commands.map((it) => command(page, it))));
  } catch (error) {
    throw new Error(`docs/images/${picture.name}.svg, from ${picture.page}: ${error.message}; correct hack/pictures/terminals.json or the page`);
  }
  console.log(`docs/images/${picture.name}.svg`);
}

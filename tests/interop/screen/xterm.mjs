// xterm.js without a page, and with the width of characters that the terminal page uses.
import { createRequire } from "node:module";

// The addon reads its table wrongly from a `Buffer` of Node.js, which shares its memory. Browsers have none.
export async function graphemesAddon(modules) {
  const buffer = globalThis.Buffer;
  globalThis.Buffer = undefined;
  try {
    const { UnicodeGraphemesAddon } = await import(`${modules}/@xterm/addon-unicode-graphemes/lib/addon-unicode-graphemes.mjs`);
    return new UnicodeGraphemesAddon();
  } finally {
    globalThis.Buffer = buffer;
  }
}

export function loadTerminal(modules) {
  return createRequire(`${modules}/`)("@xterm/headless").Terminal;
}

const ATTRIBUTES = ["isBold", "isDim", "isItalic", "isBlink", "isInverse", "isInvisible", "isStrikethrough", "isOverline"];
const MOUSE = { NONE: 0, X10: 9, VT200: 1000, DRAG: 1002, ANY: 1003, DEFAULT: 0, SGR: 1006, SGR_PIXELS: 1016 };
const CURSORS = { block: 1, underline: 3, bar: 5 };

// A terminal whose whole state can be written as src/service/process/screen/dump.rs writes it. Some of it is not in the API.
export class Probe {
  constructor(Terminal, addon, rows, cols) {
    this.title = "";
    this.terminal = new Terminal({ rows, cols, scrollback: 500, allowProposedApi: true, logLevel: "off" });
    this.terminal.loadAddon(addon);
    this.terminal.onTitleChange((title) => { this.title = title; });
  }

  write(output) {
    return new Promise((done) => this.terminal.write(output, done));
  }

  dispose() {
    this.terminal.dispose();
  }

  dump() {
    const core = this.terminal._core;
    const { normal, alt, active } = core._bufferService.buffers;
    const { cols, rows } = this.terminal;
    const modes = core.coreService.decPrivateModes;
    const charset = (set) => (set === undefined ? "B" : set["`"] !== undefined ? "0" : "A");
    // Another set is like ASCII for us.
    const known = (set) => (set === undefined || set["`"] !== undefined || set["#"] !== undefined ? charset(set) : "B");
    const lines = [
      `size ${rows} ${cols}`,
      `cursor ${active.x} ${active.y} hidden ${core.coreService.isCursorHidden}`,
      `cursor style ${modes.cursorStyle === undefined ? 0 : CURSORS[modes.cursorStyle] + (modes.cursorBlink ? 0 : 1)}`,
      `style ${style(core._inputHandler._curAttrData)}`,
      `charset ${known(core._charsetService.charset)}`,
      `title ${this.title}`,
      ...Object.entries({
        "application cursor": modes.applicationCursorKeys,
        "application keypad": modes.applicationKeypad,
        "bracketed paste": modes.bracketedPasteMode,
        focus: modes.sendFocus,
        insert: core.coreService.modes.insertMode,
        "new line": this.terminal.options.convertEol,
        origin: modes.origin,
        "reverse wrap": modes.reverseWraparound,
        synchronized: modes.synchronizedOutput,
        wrap: modes.wraparound,
      }).map(([name, isOn]) => `mode ${name} ${isOn}`),
      `mouse ${MOUSE[core.coreMouseService.activeProtocol]} ${MOUSE[core.coreMouseService.activeEncoding]}`,
      `alternate ${active === alt}`,
    ];
    for (const buffer of active === alt ? [normal, alt] : [normal]) {
      lines.push(`margins ${buffer.scrollTop} ${buffer.scrollBottom}`);
      const row = Math.min(Math.max(buffer.savedY - buffer.ybase, 0), rows - 1);
      lines.push(`saved ${Math.min(buffer.savedX, cols - 1)} ${row} ${style(buffer.savedCurAttrData)} ${known(buffer.savedCharset)}`);
      lines.push(`tabs ${Object.keys(buffer.tabs).filter((column) => buffer.tabs[column] && column < cols).join(" ")}`);
      for (let at = 0; at < rows; at++) {
        const line = buffer.lines.get(buffer.ybase + at);
        const cell = this.terminal.buffer.active.getNullCell();
        const cells = Array.from({ length: cols }, (_, column) => {
          line.loadCell(column, cell);
          return `${cell.getChars()}\x1f${cell.getWidth()}\x1f${style(cell)}`;
        });
        lines.push(`row ${at} ${line.isWrapped && at > 0} ${cells.join("\x1e")}`);
      }
    }
    return lines.join("\n") + "\n";
  }
}

function color(mode, value) {
  if (mode === 0) return "-";
  return mode === 0x3000000 ? `#${value.toString(16).padStart(6, "0")}` : `p${value}`;
}

// The underline's style is not told by xterm.js itself, only whether there is one.
function style(cell) {
  let flags = 0;
  ATTRIBUTES.forEach((name, bit) => { if (cell[name]()) flags |= 1 << bit; });
  if (cell.isUnderline()) flags |= cell.extended.underlineStyle << 8;
  const [foreground, background] = [[cell.getFgColorMode(), cell.getFgColor()], [cell.getBgColorMode(), cell.getBgColor()]];
  return `${color(...foreground)},${color(...background)},${flags.toString(16)}`;
}

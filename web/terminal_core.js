// What the terminal page changes inside of xterm.js, which offers pages no way to do so. Each function gets the inside of a terminal that
// is open, and changes nothing if xterm.js has become different.

/** The bits of a cell's attributes that say which kind of color it has. All are zero for the default color. */
const DEFAULT_COLOR = 0;

/**
 * Makes the DOM renderer choose readable colors for reverse video, as the WebGL renderer does.
 *
 * With `minimumContrastRatio`, the DOM renderer changes letters that are hard to read on their background. Where reverse video gives
 * letters the terminal's background color, it checks the foreground color in its place. So plain reverse video becomes gray, and dark
 * letters stay dark on a dark color.
 * @param {any} core
 */
export function correctReverseVideo(core) {
  const factory = core._renderService?._renderer?.value?._rowFactory;
  const prototype = factory && Object.getPrototypeOf(factory);
  const original = prototype?._applyMinimumContrast;
  if (typeof original !== "function" || original.isCorrected) return;
  prototype._applyMinimumContrast = function (element, background, foreground, cell, ...overrides) {
    const { colors } = this._themeService;
    // What reverse video shows in front is the color of the background.
    const isBackground = cell.isInverse() && cell.getBgColorMode() === DEFAULT_COLOR && foreground === colors.foreground;
    return original.call(this, element, background, isBackground ? colors.background : foreground, cell, ...overrides);
  };
  prototype._applyMinimumContrast.isCorrected = true;
}

/**
 * Moves the field that gets the keys, which is where the cursor is, together with the rows. xterm.js moves it when output arrives, and
 * the browser then computes the layout twice for a frame.
 * @param {any} core
 */
export function moveFieldWithRows(core) {
  const move = core._syncTextArea;
  if (typeof move !== "function") return;
  let waits = false;
  core._syncTextArea = () => {
    if (waits) return;
    waits = true;
    requestAnimationFrame(() => {
      waits = false;
      move.call(core);
    });
  };
}

// Line charts of the last 15 minutes, drawn as SVG.

import { element } from "./common.js";
import { clock, setText } from "./view.js";

/** The milliseconds that a chart shows. */
const SPAN = 900_000;

/** A value that is larger than the largest of all others by this factor is cut off at the top. */
const OUTLIER = 3;

/** A step of 1, 2 or 5 times a power of ten, so that about `count` steps reach `most`. */
function niceStep(most, count) {
  const rough = most / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough * 0.999);
}

const svg = (tag, attributes = {}) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
};

/**
 * The top of the scale for values, and the largest one if it is cut off. One value in a hundred, and two in any case, may be so large that
 * the others would be flat.
 */
export function scaleOf(values, least) {
  const sorted = values.filter((value) => value !== null && value !== undefined).sort((a, b) => b - a);
  const most = Math.max(least, sorted[0] ?? 0);
  const usual = Math.max(least, sorted[2 + Math.floor(sorted.length / 100)] ?? sorted[0] ?? 0);
  return most > OUTLIER * usual ? { top: 1.25 * usual, peak: most } : { top: most };
}

/**
 * A line chart of the last 15 minutes with two lines. `format` formats values, `least` is the smallest top of the scale. A sample is
 * `{time, length, values}`: the values of the `length` ms until `time`. null is a gap.
 */
export class Chart {
  constructor(parent, { title, about = "", names, format, least }) {
    this.names = names;
    this.format = format;
    this.least = least;
    /** @type {{time: number, length: number, values: (number | null)[]}[]} */
    this.samples = [];
    /** The time of the sample that is read out. */
    this.at = undefined;
    this.width = 0;
    this.readouts = names.map(() => element("b", {}, "–"));
    this.when = element("span", { class: "when" });
    this.peak = element("span", { class: "when" });
    this.spoken = element("span", { class: "visually-hidden", role: "status" });
    this.svg = svg("svg", { role: "img", "aria-label": `${title}, the last 15 minutes` });
    this.figure = element(
      "figure",
      { class: "chart card", tabindex: "0", role: "group", "aria-label": title },
      element("h3", {}, title, " ", element("small", {}, about)),
      element(
        "div",
        { class: "legend" },
        names.map((name, index) =>
          element("span", {}, element("i", { class: index ? "two" : "one" }), `${name} `, this.readouts[index]),
        ),
        this.peak,
        this.when,
      ),
      this.svg,
      this.spoken,
    );
    parent.append(this.figure);
    const point = (event) => {
      const box = this.svg.getBoundingClientRect();
      this.choose(this.last() - SPAN * (1 - (event.clientX - box.left - this.left) / (this.width - this.left - this.right)));
    };
    const leave = () => {
      this.at = undefined;
      this.draw();
    };
    this.svg.addEventListener("pointermove", point);
    this.svg.addEventListener("pointerdown", point);
    this.svg.addEventListener("pointerleave", leave);
    this.figure.addEventListener("blur", leave);
    this.figure.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") leave();
      if (!step || !this.samples.length) return;
      event.preventDefault();
      const now = this.samples.findIndex(({ time }) => time === this.at);
      const next = now < 0 ? this.samples.length - 1 : now + step;
      this.choose(this.samples[Math.max(0, Math.min(this.samples.length - 1, next))].time);
      setText(
        this.spoken,
        `${this.when.textContent}: ${names.map((name, index) => `${name} ${this.readouts[index].textContent}`).join(", ")}`,
      );
    });
    new ResizeObserver(([{ contentRect }]) => {
      if (Math.abs(contentRect.width - this.width) < 0.5) return;
      this.width = contentRect.width;
      this.draw();
    }).observe(this.svg);
  }

  last() {
    return this.samples.at(-1)?.time ?? Date.now();
  }

  /** Reads out the sample that is nearest to a time. */
  choose(time) {
    let best;
    for (const sample of this.samples) if (!best || Math.abs(sample.time - time) < Math.abs(best.time - time)) best = sample;
    this.at = best?.time;
    this.draw();
  }

  /** Shows samples. */
  set(samples) {
    this.samples = samples;
    if (!document.hidden) this.draw();
  }

  draw() {
    const { samples, width } = this;
    const height = 152;
    const chosen = samples.find(({ time }) => time === this.at);
    const shown = chosen ?? samples.at(-1);
    this.readouts.forEach((node, index) => {
      const value = shown?.values[index];
      setText(node, value === null || value === undefined ? "–" : this.format(value));
    });
    setText(this.when, chosen ? clock(new Date(chosen.time)) : "");
    if (width < 50) return;
    const { top: most, peak } = scaleOf(
      samples.flatMap(({ values }) => values),
      this.least,
    );
    setText(this.peak, peak && !chosen ? `cut off: ${this.format(peak)}` : "");
    const step = niceStep(most, 4);
    const steps = Math.ceil(most / step - 0.001);
    const top = steps * step;
    const labels = Array.from({ length: steps + 1 }, (_, index) =>
      index ? this.format(index * step).replace(/\.0 /, " ") : "0",
    );
    const left = (this.left = Math.max(30, 8 + 6.3 * Math.max(...labels.map(({ length }) => length))));
    const right = (this.right = 6);
    const [above, below] = [8, 20];
    const now = this.last();
    const x = (time) => width - right - ((now - time) / SPAN) * (width - left - right);
    const y = (value) => above + (1 - Math.min(1, value / top)) * (height - above - below);
    const nodes = [];
    labels.forEach((label, index) => {
      const at = Math.round(y(index * step)) + 0.5;
      nodes.push(svg("line", { class: index ? "grid" : "axis", x1: left, x2: width - right, y1: at, y2: at }));
      const text = svg("text", { x: left - 6, y: at + 3.5, "text-anchor": "end" });
      text.textContent = label;
      nodes.push(text);
    });
    for (let minute = 0; minute <= 15; minute += 5) {
      const at = Math.round(x(now - minute * 60_000)) + 0.5;
      nodes.push(svg("line", { class: "axis", x1: at, x2: at, y1: height - below, y2: height - below + 4 }));
      const text = svg("text", { x: at, y: height - 4, "text-anchor": minute === 15 ? "start" : minute ? "middle" : "end" });
      text.textContent = minute === 15 ? "−15 min" : minute ? `−${minute}` : "now";
      nodes.push(text);
    }
    this.names.forEach((_, line) => {
      let path = "";
      let area = "";
      let run = [];
      const flush = () => {
        if (run.length) {
          const points = run.map(([at, value]) => `${at.toFixed(1)} ${value.toFixed(1)}`);
          path += `M${points.length > 1 ? points.join("L") : `${points[0]}h0`}`;
          if (!line && points.length > 1)
            area += `M${run[0][0].toFixed(1)} ${y(0)}L${points.join("L")}L${run.at(-1)[0].toFixed(1)} ${y(0)}Z`;
        }
        run = [];
      };
      let earlier;
      for (const { time, length, values } of samples) {
        const value = values[line];
        // A gap between samples, or none at all in this one.
        if (value === null || (earlier && time - length - earlier > 5000)) flush();
        earlier = time;
        if (value === null || x(time) < left - 1) continue;
        // A long sample is a mean, so it is level from its beginning.
        if (length > 5000) run.push([Math.max(left, x(time - length)), y(value)]);
        run.push([x(time), y(value)]);
      }
      flush();
      const look = line ? "two" : "one";
      if (area) nodes.push(svg("path", { class: `area ${look}`, d: area }));
      if (path) nodes.push(svg("path", { class: look, d: path }));
      for (const { time, values } of samples)
        if (values[line] > top && x(time) >= left)
          nodes.push(svg("path", { class: `cut ${look}`, d: `M${(x(time) - 3).toFixed(1)} ${above + 1}l3 -5l3 5Z` }));
    });
    if (chosen && x(chosen.time) >= left) {
      const at = x(chosen.time);
      nodes.push(svg("line", { class: "cursor", x1: at, x2: at, y1: above, y2: height - below }));
      chosen.values.forEach((value, line) => {
        if (value !== null) nodes.push(svg("circle", { class: line ? "two" : "one", cx: at, cy: y(value), r: 3.5 }));
      });
    }
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren(...nodes);
  }
}

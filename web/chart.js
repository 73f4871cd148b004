// Line charts of the last five minutes, drawn as SVG, and quantiles from cumulative histograms.

import { element } from "./common.js";
import { clock, setText } from "./view.js";

/** The milliseconds that a chart shows. */
const SPAN = 300_000;

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

/** A line chart of the last five minutes with two lines. `format` formats values, `least` is the smallest top of the scale. */
export class Chart {
  constructor(parent, { title, about = "", names, format, least }) {
    Object.assign(this, { title, names, format, least, samples: [], at: undefined, width: 0 });
    this.readouts = names.map(() => element("b", {}, "–"));
    this.when = element("span", { class: "when" });
    this.spoken = element("span", { class: "visually-hidden", role: "status" });
    this.svg = svg("svg", { role: "img", "aria-label": `${title}, the last five minutes` });
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

  /** Adds values; null is a gap. */
  add(time, values) {
    this.samples.push({ time, values });
    while (this.samples[0].time < time - SPAN - 10_000) this.samples.shift();
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
    let most = this.least;
    for (const { values } of samples) for (const value of values) if (value > most) most = value;
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
    const y = (value) => above + (1 - value / top) * (height - above - below);
    const nodes = [];
    labels.forEach((label, index) => {
      const at = Math.round(y(index * step)) + 0.5;
      nodes.push(svg("line", { class: index ? "grid" : "axis", x1: left, x2: width - right, y1: at, y2: at }));
      const text = svg("text", { x: left - 6, y: at + 3.5, "text-anchor": "end" });
      text.textContent = label;
      nodes.push(text);
    });
    for (let minute = 0; minute <= 5; minute++) {
      const at = Math.round(x(now - minute * 60_000)) + 0.5;
      nodes.push(svg("line", { class: "axis", x1: at, x2: at, y1: height - below, y2: height - below + 4 }));
      const text = svg("text", { x: at, y: height - 4, "text-anchor": minute === 5 ? "start" : minute ? "middle" : "end" });
      text.textContent = minute === 5 ? "−5 min" : minute ? `−${minute}` : "now";
      if (minute !== 4 || width > 400) nodes.push(text);
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
      for (const { time, values } of samples) {
        const value = values[line];
        if (value === null || (earlier && time - earlier > 25_000)) flush();
        earlier = time;
        if (value !== null && x(time) >= left - 1) run.push([x(time), y(value)]);
      }
      flush();
      const look = line ? "two" : "one";
      if (area) nodes.push(svg("path", { class: `area ${look}`, d: area }));
      if (path) nodes.push(svg("path", { class: look, d: path }));
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

/** The cumulative histogram of a status field, with the buckets as `[bound, count]` in order. Undefined without one. */
function readHistogram(field) {
  if (!field?.le) return undefined;
  const buckets = Object.entries(field.le)
    .map(([bound, count]) => [Number(bound), count])
    .sort(([a], [b]) => a - b);
  return { count: field.count, sum: field.sum_s, buckets };
}

/**
 * The value below which a share of the observations between two histograms lies. Null without observations.
 *
 * It is interpolated in its bucket. With few observations, the sum of all gives a closer bound: as many observations as are not
 * below the quantile are at least as long, and the others are at least as long as the lower bounds of their buckets.
 */
function quantile(before, after, share) {
  const total = after.count - before.count;
  if (total <= 0) return null;
  const rank = Math.max(1, Math.ceil(share * total));
  let [low, reached, shorter] = [0, 0, 0];
  for (let index = 0; index < after.buckets.length; index++) {
    const [bound, count] = after.buckets[index];
    const here = count - (before.buckets[index]?.[1] ?? 0);
    if (here >= rank) {
      shorter += low * (rank - 1 - reached);
      const most = (after.sum - before.sum - shorter) / (total - rank + 1);
      return Math.max(low, Math.min(low + ((bound - low) * (rank - reached)) / (here - reached), most));
    }
    shorter += low * (here - reached);
    [low, reached] = [bound, here];
  }
  return low;
}

/** The p50 and p99 of a histogram over a sliding window of seconds. */
export class Latency {
  constructor(window) {
    this.window = window;
    this.kept = [];
  }

  add(time, field) {
    const histogram = readHistogram(field);
    if (!histogram) return [null, null];
    this.kept.push({ time, histogram });
    while (this.kept.length > 2 && this.kept[1].time <= time - this.window * 1000) this.kept.shift();
    const before = this.kept[0].histogram;
    return [quantile(before, histogram, 0.5), quantile(before, histogram, 0.99)];
  }

  reset() {
    this.kept = [];
  }
}

// A chart by uPlot, in the colours and the language of the page. What it shows also stands in a table beside it.

import { formatBytes } from "../format.js";
import { format, onLanguage, t } from "../i18n.js";

const HEIGHT_PX = 240;
const AXIS_PX = 76;
const POINT_PX = 24;
/** Powers of 2, so that the axis has round figures. */
const BYTE_STEPS = Array.from({ length: 60 }, (_, power) => 2 ** power);

/** The colour of a custom property as it is now; a canvas knows no `light-dark()`. */
function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

const date = (seconds, options) => format("DateTimeFormat", { timeZone: "UTC", ...options }).format(new Date(seconds * 1000));
const told = (write) => (_plot, value) => (value === null || value === undefined ? "–" : write(value));

/** Bytes over days. */
export class LineChart {
  #plot = null;
  #width = 0;

  constructor(container) {
    this.container = container;
    container.setAttribute("role", "img");
    new ResizeObserver(() => container.clientWidth !== this.#width && this.draw()).observe(container);
    new MutationObserver(() => this.draw()).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    onLanguage(() => this.draw());
  }

  /** `make()` gives {label, days, lines}, anew for each drawing: `lines` are [{label, colour, values}], `days` dates in text. */
  show(make) {
    this.make = make;
    this.draw();
  }

  draw() {
    this.#plot?.destroy();
    this.#plot = null;
    const width = (this.#width = this.container.clientWidth);
    if (!this.make || width === 0) return;
    const { label, days, lines } = this.make();
    this.container.setAttribute("aria-label", label);
    const line = colour("line");
    const ink = { stroke: colour("muted"), grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
    const series = lines.map((each) => ({
      label: each.label, stroke: colour(each.colour), width: 2, fill: each.filled ? colour(`${each.colour}-soft`) : undefined,
      dash: each.dashed ? [6, 4] : undefined, points: { show: days.length * POINT_PX < width }, value: told(formatBytes),
    }));
    const options = {
      width, height: HEIGHT_PX,
      tzDate: (seconds) => window.uPlot.tzDate(new Date(seconds * 1000), "UTC"),
      cursor: { drag: { x: false, y: false }, y: false },
      scales: { y: { range: (_plot, _low, high) => [0, Math.max(high, 1) * 1.08] } },
      axes: [
        { ...ink, space: 70, values: (_plot, splits) => splits.map((split) => date(split, { day: "numeric", month: "short" })) },
        { ...ink, size: AXIS_PX, incrs: BYTE_STEPS, values: (_plot, splits) => splits.map(formatBytes) },
      ],
      series: [{ label: t("growth.date"), value: told((seconds) => date(seconds, { dateStyle: "medium" })) }, ...series],
      hooks: { ready: [(plot) => plot.setLegend({ idx: days.length - 1 })] },
    };
    const data = [days.map((text) => Date.parse(text) / 1000), ...lines.map(({ values }) => values)];
    this.#plot = new window.uPlot(options, data, this.container);
  }
}

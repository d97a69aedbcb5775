// Charts by uPlot, in the colours and the language of the page. What they show also stands in a table beside them.

import { formatBytes } from "../format.js";
import { locale, onLanguage, t } from "../i18n.js";

const HEIGHT_PX = 240;
const AXIS_PX = 76;
const LABEL_PX = 90;
const POINT_PX = 24;
const DARK = matchMedia("(prefers-color-scheme: dark)");

/** The colour of a custom property as it is now; a canvas knows no `light-dark()`. */
function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/** Powers of 1,024 and their halves, so that the axis has round figures. */
const BYTE_STEPS = Array.from({ length: 60 }, (_, power) => 2 ** power);

function axes(formatX) {
  const ink = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1 } };
  return [
    { ...ink, values: (_plot, splits) => splits.map((split) => (split === null ? "" : formatX(split))), ...formatX.axis },
    { ...ink, size: AXIS_PX, incrs: BYTE_STEPS, values: (_plot, splits) => splits.map((split) => formatBytes(split)) },
  ];
}

class Chart {
  #plot = null;
  #drawn = null;

  constructor(container) {
    this.container = container;
    container.setAttribute("role", "img");
    new ResizeObserver(() => this.#drawn && container.clientWidth !== this.#drawn.width && this.draw()).observe(container);
    new MutationObserver(() => this.draw()).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    DARK.addEventListener("change", () => this.draw());
    onLanguage(() => this.draw());
  }

  /** `make()` gives {options, data, label}, anew for each drawing; null shows nothing. */
  show(make) {
    this.make = make;
    this.draw();
  }

  draw() {
    this.#plot?.destroy();
    this.#plot = null;
    const width = this.container.clientWidth;
    const made = this.make?.(width);
    this.#drawn = { width };
    if (!made || width === 0) return;
    this.container.setAttribute("aria-label", made.label);
    this.#plot = new window.uPlot({ width, height: HEIGHT_PX, ...made.options }, made.data, this.container);
  }
}

/** Bytes over days: `lines` are [{label, colour, values}], `days` dates in text. */
export class LineChart extends Chart {
  showLines(days, lines, label) {
    const date = (seconds, options) =>
      new Intl.DateTimeFormat(locale(), { timeZone: "UTC", ...options }).format(new Date(seconds * 1000));
    this.show((width) => {
      const formatX = (seconds) => date(seconds, { day: "numeric", month: "short" });
      formatX.axis = { space: 70 };
      const series = lines().map((line) => ({
        label: line.label, stroke: colour(line.colour), width: 2, fill: line.filled ? colour(`${line.colour}-soft`) : undefined,
        dash: line.dashed ? [6, 4] : undefined, points: { show: days.length * POINT_PX < width },
        value: (_plot, value) => (value === null || value === undefined ? "–" : formatBytes(value)),
      }));
      const day = { value: (_plot, seconds) => (seconds === null ? "–" : date(seconds, { dateStyle: "medium" })) };
      return {
        label: label(),
        data: [days.map((text) => Date.parse(text) / 1000), ...lines().map(({ values }) => values)],
        options: {
          tzDate: (seconds) => window.uPlot.tzDate(new Date(seconds * 1000), "UTC"),
          cursor: { drag: { x: false, y: false }, y: false },
          scales: { y: { range: (_plot, _low, high) => [0, Math.max(high, 1) * 1.08] } },
          axes: axes(formatX), series: [{ label: t("growth.date"), ...day }, ...series],
          hooks: { ready: [(plot) => plot.setLegend({ idx: days.length - 1 })] },
        },
      };
    });
  }
}

/** Bytes by name: one column each. */
export class ColumnChart extends Chart {
  showColumns(names, values, label) {
    this.show((width) => {
      const every = Math.ceil(names.length / Math.max(1, Math.floor((width - AXIS_PX) / LABEL_PX)));
      const formatX = (place) => names[place] ?? "";
      formatX.axis = { splits: () => names.map((_, place) => place).filter((place) => place % every === 0), grid: { show: false } };
      return {
        label: label(),
        data: [names.map((_, place) => place), values],
        options: {
          legend: { show: false }, cursor: { show: false },
          scales: {
            x: { time: false, range: () => [-0.6, names.length - 0.4] },
            y: { range: (_plot, _low, high) => [0, Math.max(high, 1) * 1.08] },
          },
          axes: axes(formatX),
          series: [{}, { fill: colour("hash"), stroke: colour("hash"), width: 0, paths: window.uPlot.paths.bars({ size: [0.6, 64] }), points: { show: false } }],
        },
      };
    });
  }
}

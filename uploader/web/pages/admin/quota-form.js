// A number of bytes as a person gives it: a figure and a unit.

import { element, setText } from "../dom.js";
import { t } from "../i18n.js";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
const ENTERED_DIGITS = 3;

/** The largest unit in which the figure is short and exact. */
function inUnits(bytes) {
  for (let power = UNITS.length - 1; power > 0; power -= 1) {
    const value = bytes / 1024 ** power;
    if (value >= 1 && Number(value.toFixed(ENTERED_DIGITS)) === value) return { value, power };
  }
  return { value: bytes, power: 0 };
}

/** A form that calls `save(bytes)` with another number of bytes than `current`. */
export function quotaForm(current, save) {
  const { value, power } = inUnits(current);
  const input = element("input", {
    type: "text", inputmode: "decimal", id: "quota-value", value, "aria-label": t("user.quota"), "aria-describedby": "quota-error", autocomplete: "off",
  });
  const units = UNITS.map((unit, number) => element("option", { value: number, selected: number === power }, unit));
  const unit = element("select", { id: "quota-unit", "aria-label": t("user.unit") }, ...units);
  const error = element("p", { class: "error", id: "quota-error", role: "alert" });
  const form = element("form", { class: "quota", novalidate: true }, input, unit, element("button", { type: "submit" }, t("user.save")), error);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = input.value.trim().replace(",", ".");
    const wanted = /^\d+(\.\d+)?$/.test(text) ? Math.round(Number(text) * 1024 ** Number(unit.value)) : NaN;
    const good = Number.isSafeInteger(wanted);
    setText(error, good ? "" : t("user.bad-quota"));
    if (!good) input.focus();
    else if (wanted !== current) save(wanted);
  });
  return form;
}

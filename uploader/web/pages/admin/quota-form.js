// A number of bytes as a person gives it: a figure and a unit.

import { element, setText } from "../dom.js";
import { SIZE_UNITS } from "../format.js";
import { t } from "../i18n.js";

const UNITS = [{ unit: "B", factor: 1 }, ...SIZE_UNITS.filter(({ unit }) => !unit.startsWith("P")).reverse()];
const ENTERED_DIGITS = 3;

/** The largest unit in which the figure is short and exact. */
function inUnits(bytes) {
  for (let power = UNITS.length - 1; power > 0; power -= 1) {
    const value = bytes / UNITS[power].factor;
    if (value >= 1 && Number(value.toFixed(ENTERED_DIGITS)) === value) return { value, power };
  }
  return { value: bytes, power: 0 };
}

/** Fields for a number of bytes, or for none yet where `current` is null: {input, unit, read()}; what is no number is read as
 * NaN. `described` is the id of what tells so. */
export function spaceFields(id, current, described) {
  const { value, power } = current === null ? { value: "", power: UNITS.findIndex(({ unit }) => unit === "GiB") } : inUnits(current);
  const label = current === null ? null : t("user.quota");
  const input = element("input", { type: "text", inputmode: "decimal", id, value, "aria-label": label, "aria-describedby": described, autocomplete: "off" });
  const units = UNITS.map(({ unit }, number) => element("option", { value: number, selected: number === power }, unit));
  const unit = element("select", { id: `${id}-unit`, "aria-label": t("user.unit") }, ...units);
  const read = () => {
    const text = input.value.trim().replace(",", ".");
    const bytes = /^\d+(\.\d+)?$/.test(text) ? Math.round(Number(text) * UNITS[unit.value].factor) : NaN;
    return Number.isSafeInteger(bytes) ? bytes : NaN;
  };
  return { input, unit, read };
}

/** A form that calls `save(bytes)` with another number of bytes than `current`. */
export function quotaForm(current, save) {
  const { input, unit, read } = spaceFields("quota-value", current, "quota-error");
  const error = element("p", { class: "error", id: "quota-error", role: "alert" });
  const form = element("form", { class: "quota", novalidate: true }, input, unit, element("button", { type: "submit" }, t("user.save")), error);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const wanted = read();
    setText(error, Number.isNaN(wanted) ? t("user.bad-quota") : "");
    if (Number.isNaN(wanted)) input.focus();
    else if (wanted !== current) save(wanted);
  });
  return form;
}

// Brings files back from the trash. Whose name is taken meanwhile, a person is asked about.

import { Problem } from "../../client/api.js";
import { fileOf } from "../../client/plan.js";
import { t } from "../../i18n.js";
import { askAboutName, fact, fileNamed, ForAll, hintOf } from "../name-taken.js";
import { lastSegment } from "../files/place.js";

const AT_ONCE = 5000;
// Until a large content that is examined is asked for again.
const LOOK_EVERY_MS = 2000;

function problemOf(told) {
  return new Problem(told.code, { ...told, fields: told });
}

export class Restores {
  #forAll = null;
  #restored = [];
  #problem = null;

  constructor(api, { hasTrash }) {
    Object.assign(this, { api, hasTrash });
  }

  /** `trashed` are files of the trash: {restored, problem}, the files that are back, some of them held, and why others are
   * not, if there is a reason but the person's. Throws Problem. */
  async restore(trashed) {
    const byId = new Map(trashed.map((file) => [file.id, file]));
    const taken = [];
    const [examined, ids] = [[], [...byId.keys()]];
    for (let first = 0; first < ids.length; first += AT_ONCE) {
      const { results } = await this.api.request("POST", "/me/trash/restore", { body: { ids: ids.slice(first, first + AT_ONCE) } });
      for (const result of results) {
        const { id, status, problem } = result;
        if (result.file) this.#restored.push(fileOf(result));
        else if (status === 202) examined.push(byId.get(id));
        else if (problem.code === "name-taken") taken.push({ file: byId.get(id), name: problem.taken });
        else this.#problem ??= problemOf(problem);
      }
    }
    for (const file of examined) await this.#alone(file, "fail", taken);
    while (taken.length) {
      const { file, name } = taken.shift();
      const answer = this.#forAll ?? (await this.#ask(file, name, taken.length));
      if (answer === null) break;
      if (answer !== "skip") await this.#alone(file, answer, taken);
    }
    return { restored: this.#restored, problem: this.#problem };
  }

  /** `taken` gets what has to be asked about. */
  async #alone(file, ifExists, taken) {
    try {
      for (;;) {
        const told = await this.api.request("POST", `/me/trash/${file.id}/restore`, { body: { if_exists: ifExists } });
        if (told.state !== "restoring") {
          this.#restored.push(fileOf(told) ?? told);
          return;
        }
        await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS));
      }
    } catch (problem) {
      if (problem.code === "name-taken" && ifExists === "fail") taken.push({ file, name: problem.fields.taken });
      else this.#problem ??= problem;
    }
  }

  async #ask(file, name, others) {
    const there = await fileNamed(this.api, name);
    const forAll = others ? new ForAll() : null;
    forAll?.say(t("question.for-all-others"));
    const facts = [there && fact("question.there", there), fact("question.trashed", file)];
    const choices = ["keep", "skip", ...(there && name === file.name ? ["replace"] : [])];
    const hint = hintOf("question.skip-restore", this.hasTrash);
    const answer = await askAboutName(lastSegment(name), { facts, hint, choices, forAll, back: t("move.cancel") });
    if (answer && forAll?.isChecked) this.#forAll = answer;
    return answer;
  }
}

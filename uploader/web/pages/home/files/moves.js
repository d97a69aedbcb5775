// Files and folders that get other names, some of which may be taken: a person is asked about each of these, or once for all.
//
// The server is asked to replace nothing first. The name that is in its way belongs to one of the entries: a file goes by
// itself then, as was answered; a folder that meets another of its name goes in parts, as each file in it may be in the way.

import { t } from "../../i18n.js";
import { askAboutName, fact, fileNamed, ForAll, hintOf } from "../name-taken.js";
import { entryOfFile, entryOfFolder } from "./entries.js";
import { folderOf, lastSegment } from "./place.js";
import { bodyOf, partsOf } from "./selected.js";

const PAGE = 1000;

/** Entries that go into one folder, `to`; with `name`, the one of them under that. */
class Group {
  constructor(entries, to, more = {}) {
    Object.assign(this, { entries, to, name: null, ifExists: "fail", isUnless: null, ...more });
  }

  with(entries, more = {}) {
    return new Group(entries, this.to, { name: this.name, ...more });
  }

  without(...entries) {
    const left = new Set(entries);
    return this.with(this.entries.filter((entry) => !left.has(entry)));
  }

  /** The name that an entry is to have, a folder with a slash at its end. */
  target({ name, isFolder }) {
    return `${this.to}${this.name ?? name}${isFolder ? "/" : ""}`;
  }

  /** The entry that can't have its name because something is called `taken`. */
  blockedBy(taken) {
    const isIt = (entry) => [taken, `${taken}/`].includes(this.target(entry)) || (entry.isFolder && taken.startsWith(this.target(entry)));
    return this.entries.find(isIt) ?? this.entries[0]; // or something above all of them
  }
}

export class Moves {
  #answers = new Map(); // by the name that is taken
  #forAll = null;
  #skipped = 0;

  constructor(api, { hasTrash }) {
    Object.assign(this, { api, hasTrash });
  }

  /** Give entries names in another folder; how many of them have them then. Throws Problem. */
  async into(entries, to) {
    await this.#carry(new Group(entries, to), entries.length > 1 || entries[0].isFolder);
    return Math.max(0, entries.length - this.#skipped);
  }

  /** Give an entry another name, which may be one in another folder: the name it has then, or null. Throws Problem. */
  async rename(entry, name) {
    const renamed = await this.#carry(new Group([entry], folderOf(name), { name: lastSegment(name) }), entry.isFolder);
    return this.#skipped ? null : (renamed?.name ?? name);
  }

  /** The last answer of the server. */
  async #carry(first, isMany) {
    const waiting = partsOf(first.entries).map((entries) => first.with(entries)).reverse();
    let told = null;
    while (waiting.length) {
      const group = waiting.pop();
      if (!group.entries.length || (group.isUnless !== null && group.isUnless !== this.#skipped)) continue;
      const isForAll = group.ifExists === "fail" && ["keep", "replace"].includes(this.#forAll);
      const ifExists = isForAll ? this.#forAll : group.ifExists;
      try {
        told = await this.#send(group, ifExists);
      } catch (problem) {
        if (problem.code !== "name-taken" || !problem.fields.taken) throw problem;
        const next = await this.#afterTaken(group, problem.fields.taken, { isMany, wasRefused: ifExists !== "fail" });
        if (!next) return null;
        waiting.push(...next);
      }
    }
    return told;
  }

  #send({ entries, to, name }, ifExists) {
    const body = { if_exists: ifExists };
    if (name === null) return this.api.request("POST", "/me/files/move", { body: { ...bodyOf(entries), to, ...body } });
    const [{ isFolder, key, path }] = entries;
    if (!isFolder) return this.api.request("PATCH", `/me/files/${key}`, { body: { name: to + name, ...body } });
    return this.api.request("PATCH", `/me/files?${new URLSearchParams({ prefix: path })}`, { body: { prefix: `${to}${name}/`, ...body } });
  }

  /** What is to be done then, the last first; null: the person wants nothing more. */
  async #afterTaken(group, taken, { isMany, wasRefused }) {
    const entry = group.blockedBy(taken);
    const isBelow = entry.isFolder && taken.startsWith(group.target(entry));
    let answer = this.#answers.get(taken) ?? this.#forAll;
    if (!answer || (answer === "replace" && wasRefused)) {
      answer = await this.#ask(group, entry, taken, { isBelow, isMany, canReplace: !wasRefused });
      if (answer === null) {
        this.#skipped = Infinity;
        return null;
      }
      this.#answers.set(taken, answer);
    }
    if (this.#forAll === "skip") return this.#withoutTaken(group, entry);
    if (this.#forAll && !wasRefused) return [group];
    if (isBelow) return [group.without(entry), ...(await this.#opened(group, entry))];
    if (answer === "skip") this.#skipped += 1;
    return [group.without(entry), ...(answer === "skip" ? [] : [group.with([entry], { ifExists: answer })])];
  }

  async #ask(group, entry, taken, { isBelow, isMany, canReplace }) {
    const there = await fileNamed(this.api, taken);
    let own = entry.file;
    if (isBelow) own = await fileNamed(this.api, entry.path + taken.slice(group.target(entry).length));
    const facts = [there && fact("question.there", there), own && fact("question.moved", own)];
    const forAll = isMany ? new ForAll() : null;
    forAll?.say(t("question.for-all-others"));
    const hint = hintOf("question.skip-move", this.hasTrash);
    const choices = ["keep", "skip", ...(canReplace && there && own ? ["replace"] : [])];
    const answer = await askAboutName(lastSegment(taken), { facts, hint, choices, forAll, back: t("move.cancel") });
    if (answer && forAll?.isChecked) this.#forAll = answer;
    return answer;
  }

  /** A folder in its parts, and what is left of it when none of these was skipped. */
  async #opened(group, folder) {
    const to = group.target(folder);
    const opened = [group.with([folder], { isUnless: this.#skipped })];
    const entries = [];
    for await (const entry of this.#level(folder.path)) {
      const answer = entry.isFolder ? null : this.#answers.get(to + entry.name);
      if (answer === "skip") this.#skipped += 1;
      else if (answer) opened.push(new Group([entry], to, { ifExists: answer }));
      else entries.push(entry);
    }
    return [...opened, ...partsOf(entries).map((some) => new Group(some, to))];
  }

  /** The entries whose names are free; of folders that meet another of their name, what is in them. */
  async #withoutTaken(group, blocked) {
    const there = new Set();
    for await (const { path } of this.#level(group.to)) there.add(path);
    const opened = [];
    const free = [];
    for (const entry of group.entries) {
      const target = group.target(entry);
      const bare = target.replace(/\/$/, "");
      if (entry.isFolder && there.has(target)) opened.push(...(await this.#opened(group, entry)));
      else if (entry === blocked || there.has(bare) || there.has(`${bare}/`)) this.#skipped += 1;
      else free.push(entry);
    }
    return [...opened, group.with(free)];
  }

  async *#level(prefix) {
    for (let after; after !== null; ) {
      const asked = new URLSearchParams({ delimiter: "/", prefix, limit: PAGE, ...(after ? { after } : {}) });
      const { files, folders, next } = await this.api.request("GET", `/me/files?${asked}`);
      yield* folders.map(entryOfFolder);
      yield* files.map(entryOfFile);
      after = next;
    }
  }
}

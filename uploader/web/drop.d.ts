/**
 * The element `<uploader-drop>`, as `/drop.js` of every server defines it: files are dropped or chosen, and uploaded by the
 * client (client.d.ts). In a form its value is the ids of the finished files, each under its `name`; it is invalid while an upload
 * is not finished. Its words are those of the language of the page, English or 中文.
 *
 * Attributes: `server` (by default the one that the module came from), `token`, `to` (a folder), `if-exists` (`keep`, `replace`,
 * `fail`), `multiple`, `accept`, `name`, `required`, `disabled`. Parts: `zone`, `button`, `hint`, `list`, `row`, `name`, `bar`,
 * `progress`, `status`, `error`, `action`, `more`. Properties of CSS: `--uploader-accent`, `-border`, `-error`, `-radius`, `-font`,
 * `-color`, `-background`.
 */

import type { Client, ClientOptions, Files, Problem, StoredFile, Transfers } from "./client.js";

export interface UploaderDropEvents {
  /** A file is there, or has arrived and is held. */
  upload: CustomEvent<StoredFile>;
  /** A file failed, or none could be asked for. */
  problem: CustomEvent<Problem>;
  /** All that was taken at once has ended, or a file was taken off the list. */
  change: Event;
}

export class UploaderDrop extends HTMLElement {
  /** As the client takes it: a token, or a function that gives one. */
  get token(): ClientOptions["token"];
  set token(token: ClientOptions["token"]);
  readonly client: Client;
  /** Those that are finished. */
  readonly files: StoredFile[];
  /** Their ids, with commas between them. */
  readonly value: string;
  readonly form: HTMLFormElement | null;
  readonly name: string;
  readonly validity: ValidityState;
  readonly validationMessage: string;
  checkValidity(): boolean;
  reportValidity(): boolean;
  /** Take files as if they were chosen; null where the element is disabled. */
  take(files: Files): Transfers | null;
  /** Stop what is going on, and forget all; what has arrived stays on the server. */
  clear(): void;
  addEventListener<K extends keyof UploaderDropEvents>(
    type: K,
    listener: (this: UploaderDrop, event: UploaderDropEvents[K]) => void,
    options?: boolean | AddEventListenerOptions,
  ): void;
  addEventListener(type: string, listener: EventListenerOrEventListenerObject, options?: boolean | AddEventListenerOptions): void;
}

declare global {
  interface HTMLElementTagNameMap {
    "uploader-drop": UploaderDrop;
  }
}

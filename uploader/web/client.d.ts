/**
 * The client of uploader for web pages, as `/client.js` of every server has it: what the web page itself uploads with.
 *
 * What may pass (a lost network, a server that restarts) is waited out and tried again; everything else fails with a
 * `Problem`. Objects of the server are as its HTTP contract has them, so their members are in snake_case. Sizes are bytes,
 * times of the server RFC 3339.
 */

/** What happens to your other file of the same name: both stay, and this one gets a number; it goes to your trash as this one
 * comes to be; or it fails with `name-taken`. */
export type IfExists = "keep" | "replace" | "fail";

/** A finished file on the server; or one that it holds. */
export interface StoredFile {
  readonly id: string;
  readonly name: string;
  /** Null while it is not known of content whose uploader never told it. */
  readonly md5: string | null;
  readonly sha256: string;
  readonly size: number;
  readonly created_at: string;
  /** When it was changed where it came from, if that was told. */
  readonly modified_at: string | null;
  /** Whether its bytes did not have to be sent. */
  readonly instant: boolean;
  /** The server found its bytes to have gone bad: the same content sent again heals it. */
  readonly damaged?: boolean;
  /** It has arrived, and gates of the server have yet to let it pass: until then it is in no list, and can't be read or
   * renamed (`file-held`). `file(id)` says when it has passed; what is refused is not found any more, and lies in its owner's
   * trash. */
  readonly held?: boolean;
}

/** An open upload. */
export interface Upload {
  readonly id: string;
  readonly md5: string | null;
  readonly name: string;
  readonly size: number;
  readonly chunk_size: number;
  readonly chunk_count: number;
  readonly received_bytes: number;
  /** Inclusive ranges of chunk numbers, in order. */
  readonly missing: ReadonlyArray<readonly [first: number, last: number]>;
  readonly state: "uploading" | "merging";
  readonly created_at: string;
  readonly expires_at: string;
}

/** What lies below a folder. */
export interface Folder {
  /** With a slash at its end. */
  readonly name: string;
  readonly files: number;
  readonly bytes: number;
}

export interface FilePage {
  readonly files: StoredFile[];
  /** `after` of the following page; null: there is none. */
  readonly next: string | null;
}

export interface Usage {
  readonly total_space: number;
  readonly use_space_finished: number;
  readonly use_space_unfinished: number;
  readonly reserved: number;
  readonly available: number;
}

export interface Link {
  /** Where the content can be had without a token. */
  readonly url: string;
  readonly expires_at: string;
}

/** What went wrong. */
export class Problem extends Error {
  /** What programs compare: a code of the server (`quota-exceeded`, `name-taken`, …) or one of the client: `unreachable`,
   * `bad-answer`, `unreadable`, `unreadable-folder`, `file-changed`, `content-differs`, `no-token`, `invalid-name`,
   * `server-too-old`, `worker-failed`, `failed`. */
  readonly code: string;
  /** What it means, in English. */
  readonly detail: string;
  /** Whether the same call may succeed later, without any change. */
  readonly retryable: boolean;
  /** Of the answer; 0 where there was none. */
  readonly status: number;
  readonly retryAfterSeconds: number;
  /** Whatever else the server said, for example the figures of the quota. */
  readonly fields: Readonly<Record<string, unknown>>;
}

export interface ClientOptions {
  /** By default the server that this module came from. */
  server?: string | URL;
  /** The bearer token. Or a function that gives one: it is asked at first, and again whenever the server refuses the last
   * one, so a long upload outlives its tokens. An error of it fails the call with `no-token`; a TypeError, as `fetch` throws
   * without a network, is waited out. */
  token?: string | null | (() => string | Promise<string>);
}

export type State = "waiting" | "hashing" | "uploading" | "merging" | "complete" | "failed" | "cancelled";

/** One upload at one moment. */
export interface Progress {
  readonly name: string;
  readonly size: number;
  readonly state: State;
  readonly paused: boolean;
  /** What the server has acknowledged. */
  readonly receivedBytes: number;
  /** That and what has left this device: for a progress bar. */
  readonly sentBytes: number;
  /** What this device has read of the file for both of its digests. */
  readonly hashedBytes: number;
  readonly mergedBytes: number;
  /** Null while nobody can tell. */
  readonly bytesPerSecond: number | null;
  readonly secondsLeft: number | null;
  /** What is being waited out. */
  readonly retrying: Problem | null;
}

/** Many uploads at one moment. */
export interface ManyProgress {
  readonly files: number;
  readonly complete: number;
  readonly failed: number;
  readonly size: number;
  readonly sentBytes: number;
  readonly bytesPerSecond: number | null;
  readonly secondsLeft: number | null;
  readonly retrying: Problem | null;
}

/** What became of one of many: the file it is (`file.held`: it waits for gates), and whether it was `sent`, its content was there (`instant`), or the very file
 * was (`present`); or the problem. */
export interface Outcome {
  readonly name: string;
  /** Null: it could not be read. */
  readonly source: File | null;
  readonly file: StoredFile | null;
  readonly how: "sent" | "instant" | "present" | null;
  readonly problem: Problem | null;
}

export interface UploadOptions {
  /** Its relative path on the server; by default the name of the file here. */
  name?: string;
  /** A folder that the name is put below. */
  to?: string;
  /** By default `keep`. */
  ifExists?: IfExists;
  /** By default that of the file. */
  modifiedAt?: Date | string | number;
  /** Is told ten times a second at most, and at the end. */
  onProgress?: (progress: Progress) => void;
  /** Aborting it stops the upload: what has arrived stays for the next call. */
  signal?: AbortSignal;
}

export interface ManyOptions {
  to?: string;
  ifExists?: IfExists;
  onProgress?: (progress: ManyProgress) => void;
  /** Is told of each file that is there, or failed. */
  onFile?: (outcome: Outcome) => void;
  /** Finds the open upload that a file of this name and size goes on with, of whatever client; null: none that is known. */
  expected?: (name: string, size: number) => Upload | null;
  signal?: AbortSignal;
}

/** A file under a name of its own. */
export interface NamedFile {
  file: Blob;
  name: string;
}

/** A file or folder that could not be read: its outcome has the problem. */
export interface UnreadEntry {
  file: null;
  name: string;
  problem: Problem;
}

export type Picked = File | NamedFile | UnreadEntry;

export type Files = Iterable<Picked> | AsyncIterable<ReadonlyArray<Picked>>;

/** An upload that was started. */
export interface Transfer {
  /** The file it became. Fails with Problem; with the reason of the signal, or an AbortError, if it was stopped or cancelled. */
  readonly result: Promise<StoredFile>;
  readonly progress: Progress;
  /** Begin no further chunk. */
  pause(): void;
  resume(): void;
  /** End it here; what has arrived stays, and the same call goes on from there. */
  stop(): void;
  /** End it on the server, too. */
  cancel(): Promise<void>;
}

/** One of many uploads that were started. */
export interface MemberTransfer {
  readonly progress: Progress;
  /** Null while it goes on. */
  readonly outcome: Outcome | null;
  pause(): void;
  resume(): void;
  cancel(): Promise<void>;
  /** If it failed: once more. */
  retry(): void;
}

/** Many uploads that were started. */
export interface Transfers {
  /** Of all that were not cancelled, once nothing of them goes on. A failure of one file is in its outcome. */
  readonly result: Promise<Outcome[]>;
  readonly progress: ManyProgress;
  /** Each file, unless it was cancelled. */
  readonly transfers: MemberTransfer[];
  pause(): void;
  resume(): void;
  stop(): void;
  cancel(): Promise<void>;
  /** Those that failed, once more; `result` is then one of all, anew. */
  retry(): void;
}

/** Uploads and files of one user of one server. */
export class Client {
  constructor(options?: ClientOptions);

  /** Upload a file, and wait for the file it becomes. Whatever arrived before, in this page, another browser or the command
   * line, is not sent again; what the server has already is not sent at all. The bytes are compared by their SHA-256. */
  upload(file: Blob, options?: UploadOptions): Promise<StoredFile>;
  /** The same in the background. */
  start(file: Blob, options?: UploadOptions): Transfer;
  /** Upload many: only what is new or changed, small ones in batches. */
  uploadMany(files: Files, options?: ManyOptions): Promise<Outcome[]>;
  startMany(files: Files, options?: ManyOptions): Transfers;
  /** The open uploads, newest first, also those of other devices. */
  uploads(): Promise<Upload[]>;
  /** Give an open upload up: its bytes are freed, and its quota is given back. */
  cancel(uploadId: string): Promise<void>;

  /** All files whose name begins with `prefix`, and has `part` anywhere in it, newest first. */
  files(prefix?: string, options?: { part?: string }): AsyncGenerator<StoredFile, void, void>;
  page(options?: { after?: string; prefix?: string; part?: string; limit?: number }): Promise<FilePage>;
  /** The folders and files right below a folder. */
  level(folder?: string): AsyncGenerator<Folder | StoredFile, void, void>;
  /** The file of exactly this name, if there is one. */
  named(name: string): Promise<StoredFile[]>;
  /** Also one that is held. */
  file(id: string): Promise<StoredFile>;
  /** A link to download a file without a token, for a while; the server may give less. */
  link(id: string, options?: { lifetimeSeconds?: number }): Promise<Link>;
  /** `ifExists` is by default `fail`. */
  rename(id: string, name: string, options?: { ifExists?: IfExists }): Promise<StoredFile>;
  delete(id: string): Promise<void>;
  /** Make an empty folder, unless it is there. */
  makeFolder(folder: string): Promise<void>;
  /** Give all that is below a folder another one, `""` for none; how many files. `ifExists` is by default `fail`. */
  moveFolder(folder: string, newFolder: string, options?: { ifExists?: IfExists }): Promise<number>;
  /** Delete all that is below a folder; how many files. */
  deleteFolder(folder: string): Promise<number>;
  usage(): Promise<Usage>;
}

/** The files of an `<input type=file>`, for `startMany`. */
export function fromInput(input: HTMLInputElement): AsyncIterable<NamedFile[]>;

/** What is dropped or pasted, folders with all that is in them and what could not be read, for `startMany`; `onEmpty` is told of folders in which there
 * is nothing, for `makeFolder`. To be called in the event itself. */
export function fromTransfer(
  dataTransfer: DataTransfer,
  options?: { onEmpty?: (name: string) => void },
): AsyncIterable<Array<NamedFile | UnreadEntry>>;

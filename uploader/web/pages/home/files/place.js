// Where a person is: a folder, what a search found, the trash, or their links. It is in the address, so that Back leads back and a bookmark there.

export const TRASH = "#trash";
export const LINKS = "#links";

/** Whether it is an address of files: a link to a part of the page leads nowhere else. */
export function isPlace(hash) {
  return hash === "" || hash.startsWith("#/");
}

/** {prefix, query}: a prefix is empty or ends with a slash; a query is empty outside of a search. */
export function placeOf(hash) {
  if (!isPlace(hash)) return { prefix: "", query: "" };
  const [path, asked = ""] = hash.replace(/^#/, "").split("?", 2);
  try {
    const segments = path.split("/").filter(Boolean).map(decodeURIComponent);
    const query = new URLSearchParams(asked).get("q") ?? "";
    return { prefix: segments.map((segment) => `${segment}/`).join("").normalize("NFC"), query: query.normalize("NFC") };
  } catch {
    return { prefix: "", query: "" }; // not an address of ours
  }
}

export function hashOf({ prefix, query = "" }) {
  const path = prefix.split("/").map(encodeURIComponent).join("/");
  return `#/${path}${query ? `?${new URLSearchParams({ q: query })}` : ""}`;
}

/** The folders on the way to a prefix, from the top, which is not among them: [{name, prefix}]. */
export function stepsTo(prefix) {
  const segments = prefix.split("/").slice(0, -1);
  return segments.map((name, number) => ({ name, prefix: `${segments.slice(0, number + 1).join("/")}/` }));
}

/** The folder that a name, or a folder, lies in. */
export function folderOf(name) {
  return name.slice(0, name.replace(/\/$/, "").lastIndexOf("/") + 1);
}

export function lastSegment(name) {
  return name.slice(folderOf(name).length).replace(/\/$/, "");
}

/** The folders and the name in what somebody typed. */
export function segmentsOf(text) {
  return text.normalize("NFC").split("/").map((segment) => segment.trim()).filter(Boolean);
}

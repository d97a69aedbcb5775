// What a file is, by the end of its name: which picture stands for it, and how it can be shown.

const ENDINGS = {
  image: "avif bmp gif ico jpeg jpg png webp",
  picture: "heic heif psd raw svg tif tiff",
  video: "m4v mov mp4 ogv webm",
  film: "avi flv mkv mpeg mpg wmv",
  audio: "aac flac m4a mp3 oga ogg opus wav",
  sound: "aif aiff mid wma",
  pdf: "pdf",
  text: "cfg conf diff env ini log md nfo patch rst srt tex text toml txt vtt",
  code: "bash bat c cc cpp cs css go h hpp htm html java js json jsonl jsx kt lua mjs php pl ps1 py rb rs scss sh sql swift ts tsx vue xhtml xml yaml yml",
  table: "csv tsv",
  sheet: "numbers ods xls xlsx",
  document: "doc docx epub odt pages rtf",
  slides: "key odp ppt pptx",
  archive: "7z bz2 gz rar tar tgz xz zip zst",
  disk: "bin dmg exe img iso msi pkg qcow2",
};
// Those that differ from others in how they are shown alone.
const PICTURES = { picture: "image", film: "video", sound: "audio", table: "sheet", disk: "disk" };
const SHOWN_AS = { image: "image", video: "video", audio: "audio", pdf: "pdf", text: "text", code: "text", table: "text" };
// Pages and SVG are what their text is: never what a browser would make of them.
const TEXTS = new Set(["svg"]);

const kindByEnding = new Map();
for (const [kind, endings] of Object.entries(ENDINGS)) for (const ending of endings.split(" ")) kindByEnding.set(ending, kind);

function endingOf(name) {
  const dot = name.lastIndexOf(".");
  return dot < 0 ? "" : name.slice(dot + 1).toLowerCase();
}

/** Which picture stands for a file. */
export function pictureOf(name) {
  const kind = kindByEnding.get(endingOf(name)) ?? "file";
  return PICTURES[kind] ?? kind;
}

/** "image", "video", "audio", "pdf", "text", or null: there is no preview of it. */
export function shownAs(name) {
  const ending = endingOf(name);
  return TEXTS.has(ending) ? "text" : (SHOWN_AS[kindByEnding.get(ending)] ?? null);
}

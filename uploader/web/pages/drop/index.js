// What `/drop.js` has: it defines the element <uploader-drop>.

import { UploaderDrop } from "./drop.js";

if (!customElements.get("uploader-drop")) customElements.define("uploader-drop", UploaderDrop);

export { UploaderDrop };

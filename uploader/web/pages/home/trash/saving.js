// What is in the trash, for the browser to save.

import { element } from "../../dom.js";
import { lastSegment } from "../files/place.js";

/** By a link that works for a while: nothing of the content goes through the page. Throws Problem. */
export async function saveTrashed(api, { id, name }) {
  const { url } = await api.request("POST", `/me/trash/${id}/link`, { body: {} });
  const link = element("a", { href: url, download: lastSegment(name) });
  document.body.append(link);
  link.click();
  link.remove();
}

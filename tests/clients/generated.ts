// Clients that were generated from the server's description: each sends the bytes of standard input as a file of its own name.

import createClient from "openapi-fetch";
import { client } from "./hey-api/client.gen";
import { getMeFilesIdContent, getMeFilesId, postUploads, putUploadsIdChunksN } from "./hey-api/sdk.gen";
import type { paths } from "./openapi-typescript";

declare const process: { env: Record<string, string>; stdin: AsyncIterable<Uint8Array<ArrayBuffer>> };

const headers = { Authorization: `Bearer ${process.env.TOKEN}` };
const pieces: Uint8Array<ArrayBuffer>[] = [];
for await (const piece of process.stdin) pieces.push(piece);
const whole = new Blob(pieces);
const chunk = (number: number, size: number) => whole.slice(number * size, (number + 1) * size);

async function sendByHeyApi() {
  client.setConfig({ headers }); // its base URL is that of the description
  const opened = await postUploads({ body: { name: "hey-api", size: whole.size }, throwOnError: true });
  if (opened.data.state !== "uploading") throw new Error(opened.data.state);
  const { id, chunk_count, chunk_size } = opened.data.upload;
  for (let n = 0; n < chunk_count; n += 1) {
    const sent = await putUploadsIdChunksN({ path: { id, n }, body: chunk(n, chunk_size), throwOnError: true });
    if (n < chunk_count - 1) continue;
    if (sent.data.state !== "complete") throw new Error(sent.data.state);
    const content = await getMeFilesIdContent({ path: { id: sent.data.file.id }, parseAs: "blob", throwOnError: true });
    if ((content.data as Blob).size !== whole.size) throw new Error("not what was sent");
  }
  const { error } = await getMeFilesId({ path: { id: "nothing" } });
  if (error?.code !== "file-not-found") throw new Error(String(error?.code));
}

async function sendByOpenapiTypescript() {
  const { POST, PUT } = createClient<paths>({ baseUrl: process.env.SERVER, headers });
  const opened = await POST("/uploads", { body: { name: "openapi-typescript", size: whole.size } });
  if (opened.data?.state !== "uploading") throw new Error(opened.error?.code);
  const { id, chunk_count, chunk_size } = opened.data.upload;
  for (let n = 0; n < chunk_count; n += 1) {
    const body = chunk(n, chunk_size);
    // To it binary bodies are strings.
    const sent = await PUT("/uploads/{id}/chunks/{n}", { params: { path: { id, n } }, body: "", bodySerializer: () => body });
    if (sent.error) throw new Error(sent.error.code);
    if (n === chunk_count - 1 && sent.data.state !== "complete") throw new Error(sent.data.state);
  }
}

await sendByHeyApi();
await sendByOpenapiTypescript();

// A video of the playground: it is made as a job, followed, and shown when it is complete.

import { ask, get } from "./api.js";
import { h, say } from "./dom.js";
import { bytes, part, seconds } from "./format.js";

const POLL_MS = 500;
const STATES = { queued: "waiting for its turn", in_progress: "being made" };

/** Ask for a video and show it in `body`; `facts` and `since` as `answer` has them. Leaving it early removes the job. */
export async function video({ model, text, size, seconds: length, steps, seed }, body, { facts, since, signal }) {
  const bar = h("progress", { max: 100, value: 0, "aria-label": "Progress of the video" });
  const word = h("p", { class: "faint" });
  body.append(h("div", { class: "making" }, bar, word));
  const made = await ask("videos", { method: "POST", json: { model, prompt: text, size, seconds: length, steps, seed }, signal });
  let job = await made.json();
  try {
    while (job.status in STATES) {
      bar.value = job.progress ?? 0;
      say(word, `${STATES[job.status]}, ${part((job.progress ?? 0) / 100)}, ${seconds(since())}`);
      await pause(signal);
      job = await get(`videos/${encodeURIComponent(job.id)}`, { signal });
    }
  } catch (error) {
    if (signal.aborted) await ask(`videos/${encodeURIComponent(job.id)}`, { method: "DELETE" }).catch(() => {});
    throw error;
  }
  if (job.status !== "completed") throw new Error(job.error?.message ?? `The video is ${job.status}.`);
  const blob = await (await ask(`videos/${encodeURIComponent(job.id)}/content`, { signal })).blob();
  Object.assign(facts, { size: job.size ?? "", length: job.seconds ? `${job.seconds} s` : "", file: bytes(blob.size) });
  body.replaceChildren(h("video", { class: "made", controls: true, loop: true, src: URL.createObjectURL(blob), "aria-label": "The video" }));
}

function pause(signal) {
  return new Promise((resolve, reject) => {
    signal.addEventListener("abort", () => reject(new DOMException("left", "AbortError")), { once: true });
    setTimeout(resolve, POLL_MS);
  });
}

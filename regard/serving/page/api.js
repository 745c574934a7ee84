// Questions to the server. Whoever asks gives a signal, so that nobody works for a section that was left.

import { readPacket } from "./packet.js";

const access = { key: sessionStorage.getItem("key") };

/** Why there is no answer, as a sentence; `locked` where a key is missing. */
export class Refusal extends Error {
  constructor(sentence, locked) {
    super(sentence);
    this.locked = locked;
  }
}

export function setKey(key) {
  access.key = key;
  sessionStorage.setItem("key", key);
}

/** The answer of `api/${path}` to a question as JSON or as a form; a GET without one. */
export async function ask(path, question, signal) {
  const headers = access.key ? { authorization: `Bearer ${access.key}` } : {};
  const options = { headers, signal };
  if (question instanceof FormData) Object.assign(options, { method: "POST", body: question });
  else if (question) {
    Object.assign(options, { method: "POST", body: JSON.stringify(question) });
    headers["content-type"] = "application/json";
  }
  const answer = await fetch(`api/${path}`, options);
  if (!answer.ok) throw new Refusal(await sentenceOf(answer), answer.status === 403);
  const binary = answer.headers.get("content-type").startsWith("application/octet-stream");
  return binary ? readPacket(await answer.arrayBuffer()) : answer.json();
}

async function sentenceOf(answer) {
  try {
    return (await answer.json()).error;
  } catch {
    return `${answer.status} ${answer.statusText}`;
  }
}

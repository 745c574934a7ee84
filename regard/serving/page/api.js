// Questions to the server. Whoever asks gives a signal, so that nobody works for a section that was left.

import { readPacket } from "./packet.js";

const access = { key: sessionStorage.getItem("key") };

const tongue = { words: {} };

/** Why there is no answer, as a sentence; `locked` where a key is missing. */
export class Refusal extends Error {
  constructor(sentence, locked) {
    super(sentence);
    this.locked = locked;
  }
}

/** In which words refusals are told from now on. */
export function speak(words) {
  tongue.words = words;
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
  const answer = await reach(`api/${path}`, options);
  if (!answer.ok) throw new Refusal(await sentenceOf(answer), answer.status === 403);
  const binary = answer.headers.get("content-type").startsWith("application/octet-stream");
  return binary ? readPacket(await answer.arrayBuffer()) : answer.json();
}

async function reach(address, options) {
  try {
    return await fetch(address, options);
  } catch (error) {
    throw error.name === "AbortError" ? error : new Refusal(tongue.words.noServer, false);
  }
}

/** What the page has words for, by the reason and the numbers in a header; else what the server says. */
async function sentenceOf(answer) {
  const numbers = Object.fromEntries(new URLSearchParams(answer.headers.get("x-error") ?? ""));
  const known = tongue.words.refusals[numbers.reason];
  if (known) return known(numbers);
  try {
    return (await answer.json()).error;
  } catch {
    return `${answer.status} ${answer.statusText}`;
  }
}

// Requests to the server. Callers pass an AbortSignal, so that requests of a closed section are cancelled.

import { readPacket } from "./packet.js";
import { recall, remember } from "./storage.js";

let apiKey = recall("key", "sessionStorage");
let strings = {};
let pending = 0;
let onPendingChange = () => {};

/** An error response, or a failed connection with the status 0. */
export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.needsKey = status === 403;
    this.isLoading = status === 503;
  }
}

/** Set the strings for error messages. */
export function setErrorStrings(newStrings) {
  strings = newStrings;
}

export function setApiKey(key) {
  apiKey = key;
  remember("key", key, "sessionStorage");
}

/** Call a function with the number of running requests whenever it changes. */
export function watchRequests(callback) {
  onPendingChange = callback;
}

/** Return the response of `api/${path}` as text. */
export function requestText(path, body, signal) {
  return send(path, body, signal, (response) => response.text());
}

/** Return the response of `api/${path}`. A body is posted as JSON or as a form; without a body the method is GET. */
export function request(path, body, signal) {
  return send(path, body, signal, readResponse);
}

async function send(path, body, signal, read) {
  const headers = apiKey ? { authorization: `Bearer ${apiKey}` } : {};
  const options = { headers, signal };
  if (body instanceof FormData) Object.assign(options, { method: "POST", body });
  else if (body) {
    Object.assign(options, { method: "POST", body: JSON.stringify(body) });
    headers["content-type"] = "application/json";
  }
  onPendingChange(++pending);
  try {
    const response = await fetchOrFail(`api/${path}`, options);
    if (!response.ok) throw new ApiError(await errorMessage(response), response.status);
    return await read(response);
  } finally {
    onPendingChange(--pending);
  }
}

async function readResponse(response) {
  const isBinary = response.headers.get("content-type").startsWith("application/octet-stream");
  return isBinary ? readPacket(await response.arrayBuffer()) : response.json();
}

async function fetchOrFail(url, options) {
  try {
    return await fetch(url, options);
  } catch (error) {
    throw error.name === "AbortError" ? error : new ApiError(strings.noServer, 0);
  }
}

/** Translate an error by the reason and numbers in the header X-Error, or return the message of the server. */
async function errorMessage(response) {
  const { reason, ...numbers } = Object.fromEntries(new URLSearchParams(response.headers.get("x-error") ?? ""));
  const format = strings.errors[reason];
  if (format) return format(numbers);
  try {
    return (await response.json()).error;
  } catch {
    return `${response.status} ${response.statusText}`;
  }
}

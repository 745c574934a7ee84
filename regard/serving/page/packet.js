// Arrays from the server: four bytes of length, JSON, then the arrays, as views/packet.py writes them.

const READERS = { u1: [Uint8Array, 255], u2: [Uint16Array, 65535], f4: [Float32Array], b1: [Uint8Array] };

/** {about, arrays: {name: {shape, values}}}; values are numbers, NaN where they were not finite. */
export function readPacket(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const arrays = {};
  for (const [name, { shape, type, offset, low, high }] of Object.entries(head.arrays)) {
    const [View, last] = READERS[type];
    const count = shape.reduce((product, size) => product * size, 1);
    const numbers = new View(buffer, 4 + length + offset, count);
    arrays[name] = { shape, values: last ? widen(numbers, low, high, last) : numbers };
  }
  return { about: head.content, arrays };
}

/** A part of an array along its first dimension. */
export function part({ shape, values }, index) {
  const size = values.length / shape[0];
  return { shape: shape.slice(1), values: values.subarray(index * size, (index + 1) * size) };
}

function widen(numbers, low, high, last) {
  const step = (high - low) / (last - 1);
  const values = new Float32Array(numbers.length);
  for (let i = 0; i < numbers.length; i++) values[i] = numbers[i] === last ? NaN : low + numbers[i] * step;
  return values;
}

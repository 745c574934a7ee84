// Packets of JSON and arrays; the format is described in page_data/packet.py.

const ENCODINGS = { u1: [Uint8Array, 255], u2: [Uint16Array, 65535], f4: [Float32Array], b1: [Uint8Array] };

/** Return {content, arrays: {name: {shape, values}}}. Values that were not finite are NaN. */
export function readPacket(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const arrays = {};
  for (const [name, { shape, type, offset, low, high }] of Object.entries(head.arrays)) {
    const [TypedArray, largestCode] = ENCODINGS[type];
    const size = shape.reduce((product, dimension) => product * dimension, 1);
    const codes = new TypedArray(buffer, 4 + length + offset, size);
    arrays[name] = { shape, values: largestCode ? dequantise(codes, low, high, largestCode) : codes };
  }
  return { content: head.content, arrays };
}

/** Return one element of an array along its first dimension. */
export function sliceArray({ shape, values }, index) {
  const size = values.length / shape[0];
  return { shape: shape.slice(1), values: values.subarray(index * size, (index + 1) * size) };
}

function dequantise(codes, low, high, largestCode) {
  const step = (high - low) / (largestCode - 1);
  const values = new Float32Array(codes.length);
  for (let i = 0; i < codes.length; i++) values[i] = codes[i] === largestCode ? NaN : low + codes[i] * step;
  return values;
}

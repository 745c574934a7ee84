// Attention maps.
//
// A map is {rows, columns, values, high, signed}: row-major values, NaN where attention is masked; `high` is the
// largest absolute value.

/** Unpacks the maps of all heads from {heads, rows, columns, low, high, packed} and appends their mean. */
export async function unpackHeads(record) {
  const levels = new Uint16Array(await inflate(record.packed));
  const { heads, rows, columns, low, high } = record;
  const size = rows * columns;
  const step = (high - low) / 65535;
  const mean = new Float32Array(size);
  const maps = [];
  for (let head = 0; head < heads; head++) {
    const values = new Float32Array(size);
    for (let i = 0; i < size; i++) {
      values[i] = low + levels[head * size + i] * step;
      mean[i] += values[i] / heads;
    }
    maps.push(makeMap(values, rows, columns));
  }
  return [...maps, makeMap(mean, rows, columns)];
}

export function makeMap(values, rows, columns) {
  let high = 0;
  let signed = false;
  for (const value of values) {
    if (Number.isNaN(value)) continue;
    high = Math.max(high, Math.abs(value));
    signed ||= value < -1e-6;
  }
  return { values, rows, columns, high: high || 1, signed };
}

/** Reduces a map to at most `size` rows and columns, keeping the largest absolute value of each cell. */
export function shrink(map, size) {
  const rows = Math.min(map.rows, size);
  const columns = Math.min(map.columns, size);
  if (rows === map.rows && columns === map.columns) return map;
  const values = new Float32Array(rows * columns);
  for (let i = 0; i < map.values.length; i++) {
    const row = Math.floor((Math.floor(i / map.columns) * rows) / map.rows);
    const column = Math.floor(((i % map.columns) * columns) / map.columns);
    const target = row * columns + column;
    if (Math.abs(map.values[i]) > Math.abs(values[target])) values[target] = map.values[i];
  }
  return { ...map, values, rows, columns };
}

/** Returns the position of a value on the map's colour scale, from 0 to 1. */
export function shareOf(map, value) {
  return map.signed ? (value / map.high + 1) / 2 : value / map.high;
}

/** Returns the columns with the largest weights of a row as [column, weight], largest first. */
export function strongest(map, row, count) {
  const weights = Array.from(map.values.subarray(row * map.columns, (row + 1) * map.columns), (w, i) => [i, w]);
  return weights.filter(([, weight]) => !Number.isNaN(weight)).sort((a, b) => b[1] - a[1]).slice(0, count);
}

async function inflate(base64) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

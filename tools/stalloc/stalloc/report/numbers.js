// SPDX-License-Identifier: Apache-2.0
// Sizes as people read them, and the long columns of the data.

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];

function sizeText(bytes) {
  let value = Math.abs(bytes), unit = 0;
  for (; value >= 1024 && unit + 1 < UNITS.length; ++unit) value /= 1024;
  return (bytes < 0 ? '-' : '') + (unit === 0 ? `${value} B` : `${value.toFixed(2)} ${UNITS[unit]}`);
}

function percentText(share) { return `${(100 * share).toFixed(1)} %`; }

// A round step of which at most `most` fit in `range`: 1, 2 or 5 times a power of ten, or for base 2 a power of two.
function niceStep(range, most, base) {
  let power = base ** Math.floor(Math.log(range / most) / Math.log(base));
  for (;; power *= base) {
    for (const factor of base === 10 ? [1, 2, 5] : [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]) {
      if (range / (power * factor) <= most) return power * factor;
    }
  }
}

const ARRAYS = {u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f8: Float64Array};

// Unpacks numbers that columns.py packed. Returns a typed array for each column's name.
async function unpackColumns(packed) {
  const text = atob(packed.deflate);
  const compressed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; ++i) compressed[i] = text.charCodeAt(i);
  const stream = new Blob([compressed]).stream().pipeThrough(new DecompressionStream('deflate'));
  const bytes = await new Response(stream).arrayBuffer();
  const columns = {};
  for (const [name, {kind, way, at, count}] of Object.entries(packed.columns)) {
    const stored = new ARRAYS[kind](bytes, at, count);
    columns[name] = way === 'plain' ? stored : restored(stored, way);
  }
  return columns;
}

function restored(stored, way) {
  const values = new Float64Array(stored.length);
  for (let i = 0, sum = 0; i < stored.length; ++i) {
    sum += stored[i];
    values[i] = way === 'sum' ? sum : way === 'ordinal' ? stored[i] + i : stored[i] - 1;
  }
  return values;
}

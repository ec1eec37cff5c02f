// SPDX-License-Identifier: Apache-2.0
// The plan as time by address. The visible requests are painted pixel by pixel into an image for each frame; if too
// many are
// visible for that, an image of the whole run, which is painted once, is shown instead.

const MOST_PAINTED = 60000;
const WHOLE = {width: 8192, height: 768};
const BLOCKS = 128;  // parts of the run; for each, the requests that are live at its start are listed
const UNIT = 512;

class PlanView extends View {
  constructor(host, report, device, requests, slots) {
    const plan = device.plan;
    super(host, 'plan', 'The plan as time by address', 420, new Span(0, requests.until.length),
          new Span(0, plan.physical_bytes));
    Object.assign(this, {report, plan, requests, slots, zoomsY: true, selected: -1});
    this.layPieces();
    this.listLive();
    this.colorBy = 'stack';
    const choose = element('select', {onchange: () => this.setColors(choose.value)});
    for (const [value, text] of [['stack', 'call stack'], ['module', 'library'], ['stream', 'stream'],
                                 ['stitched', 'stitched or not']]) {
      choose.append(element('option', {value, textContent: text}));
    }
    this.controls.querySelector('.hint').before(element('label', {}, 'Colors: ', choose));
    this.controls.querySelector('.hint').textContent += ' Shift: addresses. [ and ] step through requests.';
    this.legend = element('div', {className: 'legend'});
    this.canvas.before(this.legend);
    this.setColors(this.colorBy);
  }

  // Finds where the bytes of each slot lie: the pieces of slot s are [low[p], high[p]) for p from pieceFrom[s] up to
  // pieceFrom[s + 1].
  layPieces() {
    const {handles, views} = this.plan, {view, offset, size} = this.slots;
    const starts = [0];
    for (const bytes of handles) starts.push(starts[starts.length - 1] + bytes);
    const inViews = views.map((shown) => {
      const ends = [0];
      for (const handle of shown) ends.push(ends[ends.length - 1] + handles[handle]);
      return ends;
    });
    this.pieceFrom = new Uint32Array(view.length + 1);
    const low = [], high = [];
    for (let slot = 0; slot < view.length; ++slot) {
      this.pieceFrom[slot] = low.length;
      if (this.slots.kind[slot] === 3 || !views[view[slot]]) continue;  // passed through: it has no bytes
      const ends = inViews[view[slot]], shown = views[view[slot]];
      let at = offset[slot], left = Math.ceil(size[slot] / UNIT) * UNIT, first = 0, behind = shown.length;
      while (behind - first > 1) {
        const middle = (first + behind) >> 1;
        if (ends[middle] <= at) first = middle; else behind = middle;
      }
      for (let h = first; left > 0 && h < shown.length; ++h) {
        const begin = starts[shown[h]] + at - ends[h], bytes = Math.min(left, ends[h + 1] - at);
        const last = high.length - 1;
        if (last >= this.pieceFrom[slot] && high[last] === begin) high[last] += bytes;
        else low.push(begin), high.push(begin + bytes);
        at += bytes;
        left -= bytes;
      }
    }
    this.pieceFrom[view.length] = low.length;
    this.low = Float64Array.from(low);
    this.high = Float64Array.from(high);
  }

  pieces(request) {
    const slot = this.requests.slot[request];
    return slot < 0 ? [0, 0] : [this.pieceFrom[slot], this.pieceFrom[slot + 1]];
  }
  isStitched(request) {
    const slot = this.requests.slot[request];
    return slot >= 0 && this.slots.view[slot] !== 0;
  }

  listLive() {
    const until = this.requests.until, count = until.length;
    this.block = Math.max(1, Math.ceil(count / BLOCKS));
    this.liveAt = [];
    let live = [];
    for (let start = 0; start < count; start += this.block) {
      live = live.filter((request) => until[request] > start);
      this.liveAt.push(Uint32Array.from(live));
      for (let i = start; i < Math.min(start + this.block, count); ++i) {
        if (until[i] > start + this.block && this.requests.slot[i] >= 0) live.push(i);
      }
    }
  }
  // Calls `act` for all requests that may be live in [from, to).
  each(from, to, act) {
    const block = Math.min(Math.floor(from / this.block), this.liveAt.length - 1);
    if (block < 0) return;
    for (const request of this.liveAt[block]) act(request);
    const end = Math.min(Math.ceil(to), this.requests.until.length);
    for (let i = block * this.block; i < end; ++i) act(i);
  }

  setColors(by) {
    this.colorBy = by;
    const count = this.requests.until.length, weight = new Map();
    const value = by === 'stitched' ? (i) => (this.isStitched(i) ? 1 : 0) : (i) => this.requests[by][i];
    for (let i = 0; i < count; ++i) {
      if (this.requests.slot[i] >= 0) weight.set(value(i), (weight.get(value(i)) || 0) + this.requests.size[i]);
    }
    const ranked = [...weight.keys()].sort((a, b) => weight.get(b) - weight.get(a));
    if (by === 'stitched') ranked.sort();
    const rank = new Map(ranked.map((key, index) => [key, Math.min(index, PALETTE.length)]));
    this.rank = new Uint8Array(count);
    for (let i = 0; i < count; ++i) this.rank[i] = rank.get(value(i)) ?? PALETTE.length;
    this.legend.replaceChildren(...ranked.slice(0, PALETTE.length).map((key, index) => {
      const swatch = element('span', {className: 'swatch'});
      swatch.style.background = PALETTE[index];
      return element('span', {}, swatch, this.valueName(key));
    }));
    if (ranked.length > PALETTE.length) this.legend.append('grey: all others');
    this.whole = null;
    this.schedule();
  }
  valueName(key) {
    if (this.colorBy === 'stitched') return key ? 'in a stitched view' : 'in the home view';
    if (this.colorBy === 'stream') return `stream ${key}`;
    if (this.colorBy === 'module') return this.report.modules[key] || 'library not recorded';
    const frame = informativeFrames(this.report, key)[0];
    return frame ? `${frame} (stack ${key})` : 'no call stack';
  }

  draw(pen) {
    this.axes(pen);
    const {left, top, width, height} = this.inner;
    const scale = pen.scale, wide = Math.round(width * scale), high = Math.round(height * scale);
    if (this.x.size > MOST_PAINTED) {
      this.whole ??= this.painted(WHOLE.width, WHOLE.height, new Span(this.x.low, this.x.high),
                                  new Span(this.y.low, this.y.high), document.createElement('canvas'));
      const perX = WHOLE.width / (this.x.high - this.x.low), perY = WHOLE.height / (this.y.high - this.y.low);
      pen.image(this.whole, left, top, width, height,
                [(this.x.from - this.x.low) * perX, (this.y.high - this.y.to) * perY, this.x.size * perX,
                 this.y.size * perY]);
    } else {
      this.part ??= document.createElement('canvas');
      pen.image(this.painted(wide, high, this.x, this.y, this.part), left, top, width, height);
    }
    if (this.selected >= 0) pen.clipped(left, top, width, height, () => this.drawSelected(pen));
  }

  drawSelected(pen) {
    const [from, to] = this.pieces(this.selected);
    const x = this.toX(this.selected), width = Math.max(2, this.toX(this.requests.until[this.selected]) - x);
    for (let p = from; p < to; ++p) {
      const y = this.toY(this.high[p]);
      pen.frame(x, y, width, Math.max(2, this.toY(this.low[p]) - y), style('--text'));
    }
  }

  // Paints what is live in the spans onto `canvas`, and returns it.
  painted(width, height, x, y, canvas) {
    canvas.width = width;
    canvas.height = height;
    const to = canvas.getContext('2d');
    const image = to.createImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    const colors = [...PALETTE, GREY].map((color) => packedColor(color, 1));
    const edges = [...PALETTE, GREY].map((color) => packedColor(color, 0.72));
    const back = packedColor(style('--back'), 1);
    const {until, slot} = this.requests, perX = width / x.size, perY = height / y.size;
    this.each(x.from, x.to, (request) => {
      if (slot[request] < 0 || until[request] <= x.from) return;
      const left = Math.max(0, Math.floor((request - x.from) * perX));
      const right = Math.min(width, Math.max(left + 1, Math.floor((until[request] - x.from) * perX)));
      const color = colors[this.rank[request]], edge = edges[this.rank[request]];
      const stitched = this.slots.view[slot[request]] !== 0;
      for (let p = this.pieceFrom[slot[request]]; p < this.pieceFrom[slot[request] + 1]; ++p) {
        if (this.high[p] <= y.from || this.low[p] >= y.to) continue;
        const top = Math.max(0, Math.floor((y.to - this.high[p]) * perY));
        const bottom = Math.min(height, Math.max(top + 1, Math.floor((y.to - this.low[p]) * perY)));
        const framed = right - left > 3 && bottom - top > 3;
        for (let row = top; row < bottom; ++row) {
          const at = row * width;
          if (framed && (row === top || row === bottom - 1)) {
            pixels.fill(edge, at + left, at + right);
            continue;
          }
          pixels.fill(color, at + left, at + right);
          if (framed) pixels[at + left] = pixels[at + right - 1] = edge;
          // Stitched slots have stripes, which show without colors too.
          if (!stitched || !framed) continue;
          for (let column = left + (left + row) % 5; column < right; column += 5) pixels[at + column] = back;
        }
      }
    });
    to.putImageData(image, 0, 0);
    return canvas;
  }

  at(atX, atY) {
    const time = this.fromX(atX), address = this.fromY(atY);
    if (time < this.x.from || time >= this.x.to || address < this.y.from || address >= this.y.to) return -1;
    let found = -1;
    this.each(Math.floor(time), Math.floor(time) + 1, (request) => {
      if (request > time || this.requests.until[request] <= time) return;
      const [from, to] = this.pieces(request);
      for (let p = from; p < to; ++p) if (this.low[p] <= address && address < this.high[p]) found = request;
    });
    return found;
  }

  describe(atX, atY) {
    const found = this.at(atX, atY);
    if (found !== this.selected) {
      this.selected = found;
      this.schedule();
    }
    return found < 0 ? null : this.requestText(found);
  }

  requestText(request) {
    const {size, until, stream, stack, module, time_us: time, slot} = this.requests;
    const end = until[request], [from, to] = this.pieces(request), lasts = end - request;
    const seconds = time.length ? ((time[Math.min(end, time.length - 1)] - time[request]) / 1e3) : null;
    const place = this.isStitched(request)
        ? `stitched view ${this.slots.view[slot[request]]}, ${to - from} pieces`
        : `home view, at ${sizeText(this.low[from] ?? 0)}`;
    return [`request ${request}: ${sizeText(size[request])} (${size[request]} B)`,
            `lives for ${lasts} requests${seconds === null ? '' : `, ${seconds.toFixed(1)} ms`}` +
                (end >= until.length ? ', to the end' : ''),
            `stream ${stream[request]}, ${this.report.modules[module[request]] || 'library not recorded'}`, place,
            ...informativeFrames(this.report, stack[request]).slice(0, 12)].join('\n');
  }

  key(key) {
    if (key !== '[' && key !== ']') return super.key(key);
    const step = key === ']' ? 1 : -1, {until, slot} = this.requests;
    let next = this.selected >= 0 ? this.selected + step : Math.floor((this.x.from + this.x.to) / 2);
    while (next >= 0 && next < until.length && slot[next] < 0) next += step;
    if (next < 0 || next >= until.length) return true;
    this.selected = next;
    if (next < this.x.from || next >= this.x.to) this.x.show(next - this.x.size / 2, this.x.size);
    this.tell(this.requestText(next));
    return true;
  }
}

// "#rrggbb" as the pixels of an image hold it (little-endian), darker by `factor`.
function packedColor(color, factor) {
  const part = (from) => Math.round(parseInt(color.slice(from, from + 2), 16) * factor);
  return (0xff << 24 | part(5) << 16 | part(3) << 8 | part(1)) >>> 0;
}

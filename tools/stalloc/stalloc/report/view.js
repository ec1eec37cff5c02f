// SPDX-License-Identifier: Apache-2.0
// What all drawn views share: a canvas that can be zoomed and panned by mouse, touch and keyboard, and saved.

// Okabe and Ito's palette, which people with any kind of color vision can tell apart, and grey for the rest.
const PALETTE = ['#0072b2', '#e69f00', '#009e73', '#cc79a7', '#56b4e9', '#d55e00', '#f0e442'];
const GREY = '#8a939b';

const MARGIN = {left: 78, right: 46, top: 10, bottom: 26};
const LEAST_SPAN = 8;  // how many requests or bytes are shown at least, when zoomed in completely
const HINT = 'Click it, then: wheel or + and - zoom, drag or arrows pan, 0 shows all.';

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const element = (tag, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
};

// A range of numbers, of which a part is shown.
class Span {
  constructor(low, high) { Object.assign(this, {low, high, from: low, to: Math.max(high, low + 1)}); this.high = this.to; }
  get size() { return this.to - this.from; }
  get all() { return this.size >= this.high - this.low; }
  // Zooms around `at`, which stays where it is; a `factor` below 1 shows less.
  zoom(at, factor) {
    const size = Math.min(Math.max(this.size * factor, LEAST_SPAN), this.high - this.low);
    this.show(at - (at - this.from) / this.size * size, size);
  }
  pan(by) { this.show(this.from + by, this.size); }
  show(from, size) {
    this.from = Math.max(this.low, Math.min(from, this.high - size));
    this.to = this.from + size;
  }
  reset() { this.show(this.low, this.high - this.low); }
}

class View {
  // `name` names the saved files. A subclass draws (draw), and describes what lies at a point (describe).
  constructor(host, name, label, height, x, y) {
    Object.assign(this, {name, height, x, y, margin: MARGIN, frames: 0});
    this.canvas = element('canvas', {tabIndex: 0});
    this.canvas.setAttribute('role', 'img');
    this.canvas.setAttribute('aria-label', `${label}. ${HINT}`);
    this.canvas.style.height = `${height}px`;
    this.status = element('div', {className: 'status'});
    this.status.setAttribute('aria-live', 'polite');
    const button = (text, title, act) => element('button', {type: 'button', textContent: text, title, onclick: act});
    this.controls = element('div', {className: 'controls'}, button('+', 'Zoom in', () => this.zoomMiddle(0.5)),
                            button('−', 'Zoom out', () => this.zoomMiddle(2)),
                            button('All', 'Show all (0)', () => this.reset()),
                            button('PNG', 'Save as PNG', () => this.savePng()),
                            button('SVG', 'Save as SVG', () => this.saveSvg()),
                            element('span', {className: 'hint', textContent: HINT}));
    host.append(element('figure', {}, this.controls, this.canvas, this.status));
    this.listen();
    this.observer = new ResizeObserver(() => this.schedule());
    this.observer.observe(this.canvas);
  }

  get width() { return Math.max(this.canvas.clientWidth, 200); }
  get inner() {
    const {left, right, top, bottom} = this.margin;
    return {left, top, width: this.width - left - right, height: this.height - top - bottom};
  }
  toX(value) { return this.inner.left + (value - this.x.from) / this.x.size * this.inner.width; }
  toY(value) { return this.inner.top + (this.y.to - value) / this.y.size * this.inner.height; }
  fromX(at) { return this.x.from + (at - this.inner.left) / this.inner.width * this.x.size; }
  fromY(at) { return this.y.to - (at - this.inner.top) / this.inner.height * this.y.size; }

  schedule() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.paint();
    });
  }
  paint() {
    ++this.frames;
    const pen = new CanvasPen(this.canvas, this.width, this.height, Math.min(devicePixelRatio || 1, 2));
    pen.rect(0, 0, this.width, this.height, style('--back'));
    this.draw(pen);
  }

  listen() {
    const canvas = this.canvas;
    canvas.addEventListener('wheel', (event) => {
      // Scrolling the page is not held up.
      if (document.activeElement !== canvas && !event.ctrlKey) return;
      event.preventDefault();
      const factor = Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300)));
      if (event.shiftKey && this.zoomsY) this.y.zoom(this.fromY(event.offsetY), factor);
      else this.x.zoom(this.fromX(event.offsetX), factor);
      this.schedule();
    }, {passive: false});
    canvas.addEventListener('pointerdown', (event) => {
      canvas.focus({preventScroll: true});
      canvas.setPointerCapture(event.pointerId);
      this.drag = {x: event.offsetX, y: event.offsetY, moved: false};
    });
    canvas.addEventListener('pointermove', (event) => this.pointerMoved(event));
    canvas.addEventListener('pointerup', (event) => {
      if (this.drag && !this.drag.moved && this.click) this.click(event.offsetX, event.offsetY);
      this.drag = null;
    });
    canvas.addEventListener('pointerleave', () => this.tell(null));
    canvas.addEventListener('keydown', (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !this.key(event.key)) return;
      event.preventDefault();
      this.schedule();
    });
  }

  pointerMoved(event) {
    if (!this.drag) {
      this.tell(this.describe(event.offsetX, event.offsetY), event);
      return;
    }
    const byX = event.offsetX - this.drag.x, byY = event.offsetY - this.drag.y;
    if (!this.drag.moved && Math.abs(byX) + Math.abs(byY) < 4) return;
    this.x.pan(-byX / this.inner.width * this.x.size);
    if (this.zoomsY) this.y.pan(byY / this.inner.height * this.y.size);
    this.drag = {x: event.offsetX, y: event.offsetY, moved: true};
    this.tell(null);
    this.schedule();
  }

  // Does what a key means. Returns whether it means anything here.
  key(key) {
    const step = this.x.size / 10, up = this.zoomsY ? this.y.size / 10 : 0;
    const acts = {ArrowLeft: () => this.x.pan(-step), ArrowRight: () => this.x.pan(step),
                  '+': () => this.zoomMiddle(0.5), '=': () => this.zoomMiddle(0.5), '-': () => this.zoomMiddle(2),
                  0: () => this.reset(), Home: () => this.reset(), Escape: () => this.tell(null)};
    if (this.zoomsY) {
      Object.assign(acts, {ArrowUp: () => this.y.pan(up), ArrowDown: () => this.y.pan(-up),
                           PageUp: () => this.y.zoom((this.y.from + this.y.to) / 2, 0.5),
                           PageDown: () => this.y.zoom((this.y.from + this.y.to) / 2, 2)});
    }
    if (!acts[key]) return false;
    acts[key]();
    return true;
  }
  zoomMiddle(factor) {
    this.x.zoom((this.x.from + this.x.to) / 2, factor);
    this.schedule();
  }
  reset() {
    this.x.reset();
    if (this.y) this.y.reset();
    this.schedule();
  }

  // Shows a text beside the pointer and below the view, or without an event only below the view.
  tell(text, event) {
    const tip = document.getElementById('tip');
    tip.hidden = !text || !event;
    this.status.textContent = text ? text.split('\n').slice(0, 2).join('; ') : '';
    if (tip.hidden) return;
    tip.textContent = text;
    const {width, height} = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
    tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - height - 8))}px`;
  }

  // Draws the lines and numbers of both axes.
  axes(pen) {
    const {left, top, width, height} = this.inner, line = style('--line'), faint = style('--faint');
    const stepY = niceStep(this.y.size, 5, 2);
    for (let at = Math.ceil(this.y.from / stepY) * stepY; at <= this.y.to; at += stepY) {
      pen.line([left, this.toY(at), left + width, this.toY(at)], line);
      pen.text(left - 6, this.toY(at) + 4, sizeText(at), faint, 'end');
    }
    const stepX = Math.max(1, niceStep(this.x.size, Math.max(2, width / 130), 10));
    for (let at = Math.ceil(this.x.from / stepX) * stepX; at <= this.x.to; at += stepX) {
      pen.line([this.toX(at), top + height, this.toX(at), top + height + 4], faint);
      pen.text(this.toX(at), top + height + 17, this.timeText(at), faint, 'center');
    }
  }
  timeText(at) { return `request ${Math.round(at).toLocaleString('en')}`; }

  pngBlob() {
    return new Promise((done) => {
      const canvas = document.createElement('canvas');
      const pen = new CanvasPen(canvas, this.width, this.height, 2);
      pen.rect(0, 0, this.width, this.height, style('--back'));
      this.draw(pen);
      canvas.toBlob(done);
    });
  }
  svgText() {
    const pen = new SvgPen(this.width, this.height);
    pen.rect(0, 0, this.width, this.height, style('--back'));
    this.draw(pen);
    return pen.file();
  }
  async savePng() { save(await this.pngBlob(), `${this.name}.png`); }
  saveSvg() { save(new Blob([this.svgText()], {type: 'image/svg+xml'}), `${this.name}.svg`); }
}

function save(blob, name) {
  const link = element('a', {href: URL.createObjectURL(blob), download: name});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

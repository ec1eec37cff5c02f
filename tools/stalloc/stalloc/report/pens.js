// SPDX-License-Identifier: Apache-2.0
// Pens, with which a view draws on a canvas or into an SVG file by the same code.

const FONT = 'system-ui, "DejaVu Sans", sans-serif';

class CanvasPen {
  constructor(canvas, width, height, scale) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    this.to = canvas.getContext('2d');
    this.to.setTransform(scale, 0, 0, scale, 0, 0);
    this.width = width;
    this.height = height;
    this.scale = scale;
  }
  rect(x, y, width, height, fill) {
    this.to.fillStyle = fill;
    this.to.fillRect(x, y, width, height);
  }
  frame(x, y, width, height, stroke) {
    this.to.strokeStyle = stroke;
    this.to.setLineDash([]);
    this.to.lineWidth = 1.5;
    this.to.strokeRect(x, y, width, height);
  }
  trace(points) {
    this.to.beginPath();
    for (let i = 0; i < points.length; i += 2) this.to.lineTo(points[i], points[i + 1]);
  }
  line(points, stroke, width = 1, dash = []) {
    this.trace(points);
    this.to.strokeStyle = stroke;
    this.to.lineWidth = width;
    this.to.setLineDash(dash);
    this.to.stroke();
  }
  area(points, fill) {
    this.trace(points);
    this.to.fillStyle = fill;
    this.to.fill();
  }
  text(x, y, words, fill, align = 'start') {
    this.to.font = `12px ${FONT}`;
    this.to.textAlign = align;
    this.to.fillStyle = fill;
    this.to.fillText(words, x, y);
  }
  image(canvas, x, y, width, height, from = [0, 0, canvas.width, canvas.height]) {
    this.to.imageSmoothingEnabled = false;
    this.to.drawImage(canvas, ...from, x, y, width, height);
  }
  clipped(x, y, width, height, draw) {
    this.to.save();
    this.to.beginPath();
    this.to.rect(x, y, width, height);
    this.to.clip();
    draw();
    this.to.restore();
  }
}

const escaped = (text) => text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);

class SvgPen {
  constructor(width, height) {
    this.width = width;
    this.height = height;
    this.scale = 2;  // of images
    this.parts = [];
    this.clips = 0;
  }
  rect(x, y, width, height, fill) {
    this.parts.push(`<rect x="${x}" y="${y}" width="${width}" height="${height}" fill="${fill}"/>`);
  }
  frame(x, y, width, height, stroke) {
    this.parts.push(`<rect x="${x}" y="${y}" width="${width}" height="${height}" fill="none" stroke="${stroke}"/>`);
  }
  points(points) {
    let text = '';
    for (let i = 0; i < points.length; i += 2) text += `${points[i].toFixed(1)},${points[i + 1].toFixed(1)} `;
    return text;
  }
  line(points, stroke, width = 1, dash = []) {
    this.parts.push(`<polyline points="${this.points(points)}" fill="none" stroke="${stroke}" stroke-width="${width}" ` +
                    `stroke-dasharray="${dash.join(' ')}"/>`);
  }
  area(points, fill) { this.parts.push(`<polygon points="${this.points(points)}" fill="${fill}"/>`); }
  text(x, y, words, fill, align = 'start') {
    const anchor = {start: 'start', center: 'middle', end: 'end'}[align];
    this.parts.push(`<text x="${x}" y="${y}" fill="${fill}" text-anchor="${anchor}" font-size="12" ` +
                    `font-family="${escaped(FONT)}">${escaped(words)}</text>`);
  }
  image(canvas, x, y, width, height, from = [0, 0, canvas.width, canvas.height]) {
    const cut = document.createElement('canvas');
    new CanvasPen(cut, width, height, this.scale).image(canvas, 0, 0, width, height, from);
    this.parts.push(`<image x="${x}" y="${y}" width="${width}" height="${height}" href="${cut.toDataURL()}"/>`);
  }
  clipped(x, y, width, height, draw) {
    const name = `clip${++this.clips}`;
    this.parts.push(`<clipPath id="${name}"><rect x="${x}" y="${y}" width="${width}" height="${height}"/></clipPath>` +
                    `<g clip-path="url(#${name})">`);
    draw();
    this.parts.push('</g>');
  }
  file() {
    return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${this.width} ${this.height}" width="${this.width}" ` +
           `height="${this.height}">${this.parts.join('\n')}</svg>\n`;
  }
}

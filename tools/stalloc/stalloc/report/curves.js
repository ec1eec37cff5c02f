// SPDX-License-Identifier: Apache-2.0
// Live bytes over time, beside what each allocator holds.

const ALLOCATORS = {
  native: {name: 'PyTorch native', color: '#d55e00', dash: []},
  expandable: {name: 'PyTorch expandable segments', color: '#e69f00', dash: [8, 4]},
  online: {name: 'stalloc without a plan', color: '#56b4e9', dash: [3, 3]},
  planned: {name: 'stalloc with a plan', color: '#009e73', dash: []},
};

class CurvesView extends View {
  constructor(host, device, requests) {
    const most = Math.max(...device.allocators.map((row) => row.held_bytes), 1);
    super(host, 'memory', 'Live bytes over time and what allocators hold', 320, new Span(0, requests.until.length),
          new Span(0, most * 1.05));
    this.device = device;
    this.curves = device.curves;
    this.requests = requests;
  }

  // The range of points of which anything is visible.
  visible() {
    const first = this.curves.first;
    let low = 0, high = first.length;
    while (low + 1 < high && first[low + 1] <= this.x.from) ++low;
    while (high - 1 > low && first[high - 1] > this.x.to) --high;
    return [low, high];
  }
  end(point) {
    const first = this.curves.first;
    return point + 1 < first.length ? first[point + 1] : this.x.high;
  }

  draw(pen) {
    this.axes(pen);
    const {left, top, width, height} = this.inner, [low, high] = this.visible();
    const steps = (values) => {
      const points = [];
      for (let p = low; p < high; ++p) {
        points.push(this.toX(this.curves.first[p]), this.toY(values[p]), this.toX(this.end(p)), this.toY(values[p]));
      }
      return points;
    };
    pen.clipped(left, top, width, height, () => {
      const most = steps(this.curves.live_most);
      if (most.length) pen.area([most[0], this.toY(0), ...most, most[most.length - 2], this.toY(0)], style('--area'));
      pen.line(most, style('--faint'), 1);
      for (const [key, {color, dash}] of Object.entries(ALLOCATORS)) pen.line(steps(this.curves[key]), color, 2, dash);
    });
  }

  describe(atX, atY) {
    const at = this.fromX(atX);
    if (at < this.x.from || at > this.x.to || atY > this.inner.top + this.inner.height) return null;
    const first = this.curves.first;
    let point = 0;
    while (point + 1 < first.length && first[point + 1] <= at) ++point;
    if (!first.length) return null;
    const time = this.requests.time_us;
    const lines = [`requests ${first[point]} to ${this.end(point) - 1}` +
                       (time.length ? `, ${((time[first[point]] - time[0]) / 1e6).toFixed(3)} s after the first` : ''),
                   `live: ${sizeText(this.curves.live_least[point])} to ${sizeText(this.curves.live_most[point])}`];
    for (const [key, {name}] of Object.entries(ALLOCATORS)) lines.push(`${name}: ${sizeText(this.curves[key][point])}`);
    return lines.join('\n');
  }
}

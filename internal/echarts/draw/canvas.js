// canvas is the part of an HTML canvas that ECharts uses; go draws. It has no radial gradients, patterns and images, so
// a chart with one throws an exception.
function canvas(go) {
  function paint(style, alpha) {
    var of = function (color) {
      var c = echarts.color.parse(color);
      return [c[0], c[1], c[2], c[3] * alpha];
    };
    if (typeof style === "string") return { at: [], stops: [0], colors: [of(style)] };
    return { at: style.at, stops: style.stops, colors: style.colors.map(of) };
  }
  var context = {
    globalAlpha: 1, lineWidth: 1, lineDashOffset: 0,
    save: go.push, restore: go.restore, clip: go.clip,
    setTransform: go.setTransform, transform: go.transform, scale: go.scale,
    beginPath: go.clear, moveTo: go.moveTo, lineTo: go.lineTo, closePath: go.close,
    quadraticCurveTo: go.quadraticTo, bezierCurveTo: go.cubicTo, ellipse: go.ellipse,
    clearRect: function () {},
    arc: function (x, y, r, from, to) { go.ellipse(x, y, r, r, 0, from, to); },
    rect: function (x, y, w, h) {
      go.moveTo(x, y); go.lineTo(x + w, y); go.lineTo(x + w, y + h); go.lineTo(x, y + h); go.close();
    },
    fillRect: function (x, y, w, h) { go.clear(); this.rect(x, y, w, h); this.fill(); },
    fill: function () { go.paint(paint(this.fillStyle, this.globalAlpha)); },
    setLineDash: function (dashes) { this.dashes = dashes; },
    stroke: function () {
      go.line(paint(this.strokeStyle, this.globalAlpha), this.lineWidth, this.lineCap || "", this.dashes || [],
        this.lineDashOffset);
    },
    text: function (text, x, y) {
      var size = parseFloat(/([\d.]+)px/.exec(this.font)[1]);
      if (this.textBaseline !== "middle") throw new Error("baseline " + this.textBaseline);
      go.clear();
      go.text(text, x, y, size, /bold/.test(this.font), this.textAlign);
    },
    fillText: function (text, x, y) { this.text(text, x, y); this.fill(); },
    strokeText: function (text, x, y) { this.text(text, x, y); this.stroke(); },
    createLinearGradient: function (x0, y0, x1, y1) {
      return {
        at: [x0, y0, x1, y1], stops: [], colors: [],
        addColorStop: function (stop, color) { this.stops.push(stop); this.colors.push(color); },
      };
    },
  };
  return { getContext: function () { return context; } };
}

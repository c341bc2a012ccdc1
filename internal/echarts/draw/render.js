// render draws options, given as JSON: with a canvas, on it; else it returns the text of an SVG document, whose element
// ids start with id.
function render(json, width, height, id, go, scale) {
  var options = revive(JSON.parse(json));
  options.animation = false;
  var list = [].concat(options.series || []);
  list.forEach(function (series) {
    // Progressive drawing waits for later frames, and here there are none.
    series.animation = false;
    series.progressive = 0;
  });
  var chart = echarts.init(go && canvas(go), null, {
    renderer: go ? "canvas" : "svg", ssr: true, width: width, height: height, devicePixelRatio: scale,
  });
  try {
    // ECharts counts its charts to name their elements, which would make equal charts differ.
    if (!go) chart.getZr().painter._id = id;
    chart.setOption(options);
    if (chart.getModel().getSeriesCount() !== list.length) {
      // ECharts passes over a kind that it does not know.
      throw new Error("cannot draw all of: " + list.map(function (series) { return series.type; }).join(", "));
    }
    if (go) {
      // On a canvas, lines leave out points near the one before, as if it had one pixel for each of ours.
      chart.getZr().storage.getDisplayList(true).forEach(function (shape) { shape.segmentIgnoreThreshold = 0; });
      return chart.getZr().flush();
    }
    // An image answers no mouse, so what serves to follow it is left out. A quote stands as it is only inside a tag.
    return chart.getZr().painter.renderToString({ useViewBox: true, cssAnimation: false, cssEmphasis: false })
      .replace(/ ecmeta_\w+="[^"]*"/g, "");
  } finally {
    chart.dispose();
  }
}

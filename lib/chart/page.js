// Replaces the images marked with mark by live charts, as soon as ECharts is on the page. Whatever fails, the images stay.
function live(mark, width, height, options) {
  function draw(echarts) {
    document.querySelectorAll('[data-shardbook-chart="' + mark + '"]').forEach(function (box) {
      if (box.dataset.live) return;
      var frame = document.createElement("div");
      echarts.init(frame, null, { renderer: "svg", width: width, height: height })
        .setOption(Object.assign(revive(JSON.parse(JSON.stringify(options))), { animation: false }));
      box.dataset.live = "yes";
      box.replaceChildren(frame);
    });
  }
  function start() {
    if (window.shardbookECharts) Promise.resolve(window.shardbookECharts).then(draw).catch(console.warn);
  }
  start();
  window.addEventListener("shardbook-echarts", start, { once: true });
}

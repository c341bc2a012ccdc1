// go-echarts writes a JavaScript function as the text "__f__function...__f__". It becomes a function again only under
// the keys where ECharts takes one, so that no title, name or label can ever become code.
function revive(node) {
  var takesFunction = /^(animationDelay|animationDelayUpdate|animationDuration|animationDurationUpdate|color|formatter|interval|labelLayout|max|min|position|renderItem|symbolSize|valueFormatter)$/;
  Object.keys(node).forEach(function (key) {
    var value = node[key];
    if (value && typeof value === "object") {
      revive(value);
    } else if (typeof value === "string" && takesFunction.test(key) && /^__f__[^]*__f__$/.test(value)) {
      node[key] = new Function("return (" + value.slice(5, -5) + ")")();
    }
  });
  return node;
}

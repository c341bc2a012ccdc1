// A JupyterLab extension is a module-federation container: JupyterLab runs this file before it starts, and then asks
// the container for its modules. The work is done while the file runs, so the module itself has nothing left to do.
(function () {
  var source = new URL("echarts.min.js", document.currentScript.src).href;
  var echarts;

  // A megabyte is fetched only once a chart asks for it.
  function load() {
    return fetch(source).then(function (response) {
      if (!response.ok) throw new Error(source + ": " + response.status);
      return response.text();
    }).then(function (text) {
      // With exports and without define, whatever other loaders are on the page.
      var exports = {}, module = { exports: exports };
      new Function("exports", "module", "define", text)(exports, module, undefined);
      return module.exports;
    });
  }

  Object.defineProperty(window, "shardbookECharts", {
    configurable: true,
    get: function () { return echarts = echarts || load(); },
  });
  window.dispatchEvent(new Event("shardbook-echarts"));

  var modules = {
    "./extension": { default: { id: "@shardbook/echarts:plugin", autoStart: true, activate: function () {} }, __esModule: true },
  };
  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB["@shardbook/echarts"] = {
    init: function () {},
    get: function (name) {
      return modules[name]
        ? Promise.resolve(function () { return modules[name]; })
        : Promise.reject(new Error("no module " + name));
    },
  };
})();

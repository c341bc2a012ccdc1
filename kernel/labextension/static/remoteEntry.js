// A JupyterLab extension is a module-federation container: JupyterLab runs this file before it starts, and then asks
// the container for its modules. ECharts needs no module: its work is done while the file runs.
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

  // A cell that is run while its notebook's session is still starting has no kernel yet, and JupyterLab then removes the
  // cell's outputs and runs nothing. This executor, which takes the place of JupyterLab's, waits for the session first.
  function cellExecutor(notebook) {
    return {
      id: "@shardbook/lab:cell-executor",
      description: "Runs cells once their notebook's session has started.",
      autoStart: true,
      provides: notebook.INotebookCellExecutor,
      activate: function () {
        return Object.freeze({
          runCell: function (options) {
            var model = options.cell.model, context = options.sessionContext;
            if (model.type !== "code" || !context || context.session?.kernel) return notebook.runCell(options);
            model.executionState = "running"; // [*], as for any cell that waits for its turn
            return context.initialize().then(function () { return notebook.runCell(options); });
          },
        });
      },
    };
  }

  // JupyterLab's own modules, by name and version; there is one version of each.
  var shared;

  function notebookModule() {
    var only = Object.values(shared["@jupyterlab/notebook"])[0];
    return Promise.resolve(only.get()).then(function (make) { return make(); });
  }

  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB["@shardbook/lab"] = {
    init: function (scope) { shared = scope; },
    get: function (name) {
      if (name !== "./extension") return Promise.reject(new Error("no module " + name));
      return notebookModule().then(function (notebook) {
        var module = { default: cellExecutor(notebook), __esModule: true };
        return function () { return module; };
      });
    },
  };
})();

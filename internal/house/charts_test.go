package house

import (
	"encoding/base64"
	"flag"
	"html"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
)

var update = flag.Bool("update", false, "renew the README's charts from the notebooks' stored outputs")

// chartFolder has the README's charts, named like their notebooks.
const chartFolder = "docs/charts"

// charts are the charts of the notebooks that the README shows, by the beginning of their alternative text.
var charts = map[string]string{
	"00-devices":         `Which device holds which element: Shard(0, "data").And(`,
	"01-first-run":       "Loss on the same batches",
	"02-collectives":     "Model: 16 ranks",
	"03-mixed-precision": "Weights that a step does not move",
	"04-memory":          "Sequences of 4096 tokens",
	"05-saving-memory":   "Temporary memory of a step",
	"06-flash":           "Temporary memory",
	"07-data-parallel":   "One step of rank 0",
	"08-profiling":       "This machine",
	"09-zero":            "7.5 billion parameters",
	"10-pipelines":       "zb-h1",
	"11-tensor-parallel": "Heads on 4 devices",
	"12-long-sequences":  "8 query heads, 8 key heads",
	"13-many-hosts":      "Llama 3 8B",
	"14-gpu":             "A training step on an H100",
	"15-experts":         "Block 0: the first expert of each byte",
}

// TestCharts checks that the README shows a chart of each notebook from its stored outputs. With -update it writes
// them.
func TestCharts(t *testing.T) {
	if *update {
		renewCharts(t)
	}
	readme := read(t, "README.md")
	unused := tracked(t, chartFolder)
	for _, notebook := range notebooks(t) {
		want, ending := chartOf(t, notebook)
		path := chartFolder + "/" + notebook + ending
		if got, err := os.ReadFile(filepath.Join(root, path)); err != nil || string(got) != string(want) {
			t.Errorf("%s is not the chart of the notebook: go test ./internal/house -run TestCharts -update", path)
		}
		if !strings.Contains(readme, `<img src="`+path+`"`) {
			t.Errorf("README.md does not show %s", path)
		}
		unused = slices.DeleteFunc(unused, func(file string) bool { return file == path })
	}
	if len(unused) > 0 {
		t.Errorf("%q belong to no notebook: remove them", unused)
	}
}

// renewCharts writes the charts, and corrects the README's links if their image format has changed.
func renewCharts(t *testing.T) {
	t.Helper()
	must.Do(t, os.RemoveAll(filepath.Join(root, chartFolder)))
	must.Do(t, os.Mkdir(filepath.Join(root, chartFolder), 0o755))
	readme := read(t, "README.md")
	for _, notebook := range notebooks(t) {
		data, ending := chartOf(t, notebook)
		path := chartFolder + "/" + notebook
		must.Do(t, os.WriteFile(filepath.Join(root, path+ending), data, 0o644))
		readme = regexp.MustCompile(regexp.QuoteMeta(path)+`\.(svg|png)`).ReplaceAllString(readme, path+ending)
	}
	must.Do(t, os.WriteFile(filepath.Join(root, "README.md"), []byte(readme), 0o644))
}

// notebooks are the notebooks' names without extension, in reading order.
func notebooks(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, "notebooks", "*.ipynb"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("notebooks %q, %v", paths, err)
	}
	for i, path := range paths {
		paths[i] = strings.TrimSuffix(filepath.Base(path), ".ipynb")
	}
	return paths
}

// image is a chart in a notebook's output: its alternative text, format and data.
var image = regexp.MustCompile(`<img alt="([^"]*)"[^>]* src="data:image/(svg|png)(?:\+xml)?;base64,([^"]*)"`)

// chartOf returns the notebook's chart of charts, and the extension of its format.
func chartOf(t *testing.T, notebook string) (data []byte, ending string) {
	t.Helper()
	var titles []string
	for _, cell := range cells(t, "notebooks/"+notebook+".ipynb") {
		for _, output := range cell.Outputs {
			for _, found := range image.FindAllStringSubmatch(lines(output.Data["text/html"]), -1) {
				title := html.UnescapeString(found[1])
				titles = append(titles, title)
				if charts[notebook] == "" || !strings.HasPrefix(title, charts[notebook]) {
					continue
				}
				data, err := base64.StdEncoding.DecodeString(found[3])
				if err != nil {
					t.Fatalf("%s, chart %q: %v", notebook, title, err)
				}
				return data, "." + found[2]
			}
		}
	}
	t.Fatalf("%s has no chart %q for the README: choose one of %q in charts", notebook, charts[notebook], titles)
	return nil, ""
}

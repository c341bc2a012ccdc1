package labextension_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/kernel/labextension"
	"github.com/shardbook/shardbook/lib/chart"
)

func TestInstall(t *testing.T) {
	share := t.TempDir()
	root := filepath.Join(share, "labextensions", "@shardbook", "lab")
	stale := filepath.Join(root, "static", "stale.js")
	must.Do(t, os.MkdirAll(filepath.Dir(stale), 0o755))
	must.Do(t, os.WriteFile(stale, []byte("old"), 0o644))
	for range 2 {
		must.Do(t, labextension.Install(share))
	}
	if _, err := os.Stat(stale); !os.IsNotExist(err) {
		t.Errorf("a file of an earlier installation is still there: %v", err)
	}
	var manifest struct {
		Name       string
		JupyterLab struct {
			Build struct{ Load string } `json:"_build"`
		}
	}
	data := must.Get(os.ReadFile(filepath.Join(root, "package.json")))(t)
	must.Do(t, json.Unmarshal(data, &manifest))
	if manifest.Name != "@shardbook/lab" {
		t.Errorf("name is %q, which is not where it is installed", manifest.Name)
	}
	if _, err := os.Stat(filepath.Join(root, manifest.JupyterLab.Build.Load)); err != nil {
		t.Errorf("the file that JupyterLab loads: %v", err)
	}
	echarts := must.Get(os.ReadFile(filepath.Join(root, "static", "echarts.min.js")))(t)
	if string(echarts) != chart.ECharts() {
		t.Error("echarts.min.js is not the one that lib/chart draws with")
	}
}

func TestInstallWhereNothingCanBeWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must.Do(t, os.WriteFile(file, nil, 0o644))
	if err := labextension.Install(file); err == nil {
		t.Error("Install into a file: no error")
	}
}

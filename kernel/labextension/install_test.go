package labextension_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/shardbook/shardbook/kernel/labextension"
	"github.com/shardbook/shardbook/lib/chart"
)

func TestInstall(t *testing.T) {
	share := t.TempDir()
	root := filepath.Join(share, "labextensions", "@shardbook", "lab")
	stale := filepath.Join(root, "static", "stale.js")
	if err := os.MkdirAll(filepath.Dir(stale), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(stale, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := labextension.Install(share); err != nil {
			t.Fatal(err)
		}
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
	data, err := os.ReadFile(filepath.Join(root, "package.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &manifest); err != nil {
		t.Fatal(err)
	}
	if manifest.Name != "@shardbook/lab" {
		t.Errorf("name is %q, which is not where it is installed", manifest.Name)
	}
	if _, err := os.Stat(filepath.Join(root, manifest.JupyterLab.Build.Load)); err != nil {
		t.Errorf("the file that JupyterLab loads: %v", err)
	}
	echarts, err := os.ReadFile(filepath.Join(root, "static", "echarts.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	if string(echarts) != chart.ECharts() {
		t.Error("echarts.min.js is not the one that lib/chart draws with")
	}
}

func TestInstallWhereNothingCanBeWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := labextension.Install(file); err == nil {
		t.Error("Install into a file: no error")
	}
}

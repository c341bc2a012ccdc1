package xla

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	goxla "github.com/gomlx/go-xla/compute/xla"
	"github.com/gomlx/go-xla/pjrt"
	"github.com/shardbook/shardbook/internal/must"
)

func TestUpstreamTakesPathsForNames(t *testing.T) {
	const workaround = "internal/plugin/plugin.go (loadable)"
	if !pjrt.IsCUDAName("/opt/nvidia/pjrt_c_api_cpu_plugin.so") {
		mended(t, "plugins judged by their folder", workaround)
	}
	tameGoXLA()
	_, err := goxla.NewWithOptions("/no/such,tf32=/pjrt_c_api_cpu_plugin.so", nil)
	refused(t, err, `Failed to parse option "tf32"`, "plugin paths with a comma", workaround)
}

// TestUpstreamSearchLoads has go-xla search for plugins in a folder with a file that is not one.
func TestUpstreamSearchLoads(t *testing.T) {
	if os.Getenv("SHARDBOOK_TEST_SEARCH") != "" {
		pjrt.AvailablePlugins()
		return
	}
	dir := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(dir, "pjrt_c_api_cpu_plugin.so"), []byte("not a library"), 0o644))
	cmd := exec.Command(os.Args[0], "-test.run=^TestUpstreamSearchLoads$")
	cmd.Env = append(os.Environ(), "SHARDBOOK_TEST_SEARCH=1", "PJRT_PLUGIN_LIBRARY_PATH="+dir)
	output, err := cmd.CombinedOutput()
	if err == nil {
		mended(t, "a search that loads what it finds", "internal/plugin/plugin.go (findPlatform)")
	} else if !strings.Contains(string(output), "nil pointer") {
		t.Errorf("upstream's search: %v\n%s", err, output)
	}
}

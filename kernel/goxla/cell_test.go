//go:build !resident

package goxla

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/kerneltest"
	"github.com/shardbook/shardbook/internal/must"
)

// TestInCell builds the other tests as cells are built, and runs them with devices in another process. The program has
// neither cgo nor the plugin's Go code in it.
func TestInCell(t *testing.T) {
	k := kerneltest.Ready(t)
	program := filepath.Join(t.TempDir(), "cell.test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", program, ".")
	build.Env = append(os.Environ(), k.CellEnv()...)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "../../lib/xla")
	list.Env = build.Env
	for _, linked := range []string{"runtime/cgo", "google.golang.org/protobuf/proto", "net/http"} {
		if strings.Contains("\n"+string(must.Get(list.Output())(t)), "\n"+linked+"\n") {
			t.Errorf("cells link %s", linked)
		}
		list = exec.CommandContext(t.Context(), "go", "list", "-deps", "../../lib/xla")
		list.Env = build.Env
	}
	run := must.Get(k.Command(t.Context(), "shardbook-resident", "with", program, "-test.v"))(t)
	out, err := run.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestBackend") {
		t.Errorf("%v\n%s", err, out)
	}
}

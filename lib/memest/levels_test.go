package memest_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/recompute"
)

// envPlans is the path of the file that the second process writes.
const envPlans = "SHARDBOOK_MEMEST_PLANS"

// atBothLevels use different features of XLA: collectives, half precision, loops.
var atBothLevels = []run{
	{change: both(llama, sizes(1, 64, 4, 64, 256)), batch: 2, devices: 2, clip: true},
	{change: recomputing(recompute.Block, 1), batch: 2, prec: "bf16"},
	{change: both(flash, sizes(1, 64, 4, 256, 64)), batch: 1, optimizer: "adafactor"},
}

// plans is the memory that XLA plans for the runs in one process.
type plans struct {
	Flags     string // XLA_FLAGS
	Temporary []int64
}

// TestTemporariesAtBothLevels checks that XLA plans the same temporary memory at the optimization level of tests, which
// compiles faster, as at that of users.
func TestTemporariesAtBothLevels(t *testing.T) {
	here := compiled(t)
	if path := os.Getenv(envPlans); path != "" { // the second process
		text, err := json.Marshal(here)
		if err == nil {
			err = os.WriteFile(path, text, 0o600)
		}
		must.Do(t, err)
		return
	}
	there := compiledElsewhere(t)
	const level = "--xla_backend_optimization_level=0"
	if strings.Contains(here.Flags, level) == strings.Contains(there.Flags, level) {
		t.Fatalf("both processes compile at the same level: XLA_FLAGS=%q and %q", here.Flags, there.Flags)
	}
	for i, r := range atBothLevels {
		if here, there := here.Temporary[i], there.Temporary[i]; here != there {
			t.Errorf("%v: %d bytes here, %d in the other process: want the same", r, here, there)
		}
	}
}

// compiled compiles the runs in this process.
func compiled(t *testing.T) plans {
	t.Helper()
	backend := devicetest.Open(t, 2)
	p := plans{Flags: os.Getenv("XLA_FLAGS")}
	for _, r := range atBothLevels {
		got, err := r.measure(backend)
		if err != nil {
			t.Fatalf("%v: %v", r, err)
		}
		p.Temporary = append(p.Temporary, got.temporary)
	}
	return p
}

// compiledElsewhere compiles the runs in a process at the other level, since XLA reads its flags only once.
func compiledElsewhere(t *testing.T) (p plans) {
	t.Helper()
	level := "default"
	if os.Getenv(devicetest.EnvXLA) == level {
		level = ""
	}
	path := filepath.Join(t.TempDir(), "plans.json")
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), devicetest.EnvXLA+"="+level, envPlans+"="+path)
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("at the other level: %v\n%s", err, output)
	}
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err == nil && len(p.Temporary) != len(atBothLevels) {
		err = fmt.Errorf("%d runs, want %d", len(p.Temporary), len(atBothLevels))
	}
	must.Do(t, err)
	return p
}

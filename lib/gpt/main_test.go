package gpt_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/shardbook/shardbook/internal/devicetest"
)

// envCompileWell is set in a process whose programs are compiled as they are for users.
const envCompileWell = "SHARDBOOK_GPT_COMPILE_WELL"

// TestMain has programs compiled quickly, since nearly all of them run once.
func TestMain(m *testing.M) {
	if os.Getenv(envCompileWell) != "" {
		os.Exit(m.Run())
	}
	devicetest.Main(m)
}

// compiledWell runs the test again in a process whose programs are compiled well, and says whether this one is it: XLA reads its
// flags once in a process, and a test that computes for long takes many times as long with what is compiled quickly.
func compiledWell(t *testing.T) bool {
	t.Helper()
	if os.Getenv(envCompileWell) != "" {
		return true
	}
	args := []string{"-test.v", "-test.run=^" + t.Name() + "$"}
	if testing.Short() {
		args = append(args, "-test.short")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), envCompileWell+"=1")
	output, err := cmd.CombinedOutput()
	if t.Logf("%s", output); err != nil {
		t.Errorf("in a process of its own: %v", err)
	}
	return false
}

package autodiff_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/shardbook/shardbook/internal/devicetest"
)

// XLA writes down what it makes of programs whose name begins with "split", in the working directory: a folder that is
// gone at the end.
func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "autodiff")
		if err == nil {
			defer os.RemoveAll(dir)
			err = os.Chdir(dir)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		os.Setenv("XLA_FLAGS",
			os.Getenv("XLA_FLAGS")+" --xla_dump_to=. --xla_dump_hlo_as_text --xla_dump_hlo_module_re=split.*")
		devicetest.CompileQuickly()
		return m.Run()
	}())
}

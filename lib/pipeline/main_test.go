package pipeline_test

import (
	"flag"
	"os"
	"testing"

	"github.com/shardbook/shardbook/internal/devicetest"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.bench").Value.String() == "" { // what is measured is compiled as it is for users
		devicetest.CompileQuickly()
	}
	os.Exit(m.Run())
}

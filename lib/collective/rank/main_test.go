package rank_test

import (
	"os"
	"testing"

	"github.com/shardbook/shardbook/internal/devicetest"
)

func TestMain(m *testing.M) {
	devicetest.CompileQuickly()
	os.Exit(m.Run())
}

package paramserver_test

import (
	"testing"

	"github.com/shardbook/shardbook/internal/devicetest"
)

func TestMain(m *testing.M) { devicetest.Main(m) }
